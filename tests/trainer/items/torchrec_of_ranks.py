"""Started by torchrun: the same gradients move our shared table and TorchRec's row-wise sharded collection."""

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import comm_ops
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv

from weir.trainer.items.embeddings import Embeddings
from weir.trainer.ranks.workers import Workers

CAPACITY, DIMENSION, RATE, STEPS = 64, 8, 0.1, 20


def theirs(weight: torch.Tensor) -> torch.nn.Module:
    """Return TorchRec's collection with these rows, a contiguous range of them on each rank."""
    plain = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name="table", embedding_dim=DIMENSION, num_embeddings=CAPACITY, feature_names=["item"])
        ]
    )
    # Ours adds gradients up; theirs would average them.
    comm_ops.set_gradient_division(False)
    sharder = EmbeddingBagCollectionSharder(
        fused_params={"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": RATE, "eps": 1e-10}
    )
    ranks = dist.get_world_size()
    plan = construct_module_sharding_plan(
        plain,
        {"table": row_wise(compute_kernel="fused")},
        sharder,
        local_size=ranks,
        world_size=ranks,
        device_type="cpu",
    )
    found = sharder.shard(plain, plan, ShardingEnv.from_process_group(dist.group.WORLD), device=torch.device("cpu"))
    for shard in found.state_dict()["embedding_bags.table.weight"].local_shards():
        first = shard.metadata.shard_offsets[0]
        shard.tensor.detach().copy_(weight[first : first + len(shard.tensor)])
    return found


def look_up(collection: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    # Bags of one item each: on CPUs, only bags are sharded by row.
    features = KeyedJaggedTensor.from_lengths_sync(["item"], rows, torch.ones(len(rows), dtype=torch.int64))
    found = collection(features).values()
    assert isinstance(found, torch.Tensor)
    return found


def main() -> None:
    draw = torch.Generator().manual_seed(3)
    weight = torch.randn(CAPACITY, DIMENSION, generator=draw)
    weight[0] = 0  # padding
    with Workers.from_environment("cpu") as workers:
        table = Embeddings.fresh(CAPACITY, DIMENSION, draw, workers.device, torch.float32, workers=workers)
        table.weight.copy_(weight[table.places.rows_at(torch.arange(len(table.weight)))])
        collection = theirs(weight)
        for _ in range(STEPS):
            asked = [1 + torch.randperm(CAPACITY - 1, generator=draw)[:24] for _ in range(workers.world_size)]
            slopes = [torch.randn(24, DIMENSION, generator=draw) for _ in asked]
            rows, slope = asked[workers.rank], slopes[workers.rank]
            route = table.route(rows)
            vectors = look_up(collection, rows)
            torch.testing.assert_close(route.fetch(table.weight), vectors.detach(), rtol=1e-5, atol=1e-6)
            (vectors * slope).sum().backward()
            table.adagrad_step(*table.summed(route, slope), RATE)
        every = torch.arange(CAPACITY)
        found = table.fetch(every)
        torch.testing.assert_close(found, look_up(collection, every).detach(), rtol=1e-5, atol=1e-6)
        assert (found != weight).any(1).sum() > CAPACITY / 2
        workers.first(lambda: None)


if __name__ == "__main__":
    main()
