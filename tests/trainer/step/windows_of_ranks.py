"""Started by torchrun: all ranks read a window together; each compares with what it reads alone."""

import sys

import numpy as np
import torch

from weir.contracts import Store, WindowLog
from weir.trainer.items.table import ItemTable
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.batches import Batch, batches
from weir.trainer.step.positives import Positives, SharedWindow
from weir.trainer.towers.features import FeatureVectors
from weir.trainer.towers.user_features import FeaturedUsers

OF_A_SHARE = ("histories", "known", "exposed", "user_buckets", "user_shares", "user_numbers")


def same(one: Positives, other: Positives) -> bool:
    return all(np.array_equal(mine, wanted) for mine, wanted in zip(one, other, strict=True))


def dealt(window: SharedWindow, config: TrainerConfig, start: int) -> list[Batch]:
    table, every = ItemTable(), np.unique(window.whole(window.own.items))
    known = every[: -(-len(every) * 2 // 3)]
    table.admit(known, np.array([str(key) for key in known.tolist()], object), 0)
    order, featured = torch.Generator().manual_seed(3), FeaturedUsers(FeatureVectors(4, config.features.buckets), 0)
    return list(batches(window, table, config.batch_size, order, featured=featured, start=start))


def compare_batches(mine: list[Batch], alone: list[Batch], workers: Workers) -> None:
    assert len(mine) == len(alone)
    for one, other in zip(mine, alone, strict=True):
        here = workers.share(len(other.positives))
        for name, wanted in other._asdict().items():
            cut = wanted[here] if name in OF_A_SHARE else wanted
            assert torch.equal(getattr(one, name), cut), name


def main(url: str, config: str) -> None:
    log, settings = WindowLog(Store(url)), TrainerConfig.model_validate_json(config)
    with Workers.from_environment("cpu") as workers:
        for manifest in log.committed():
            shared, alone = (SharedWindow.read(log, manifest, settings, one) for one in (workers, Workers()))
            assert len(shared) == len(alone)
            assert len(shared.own.items) < len(alone) or len(alone) <= 1
            for name in ("users", "items", "weights"):
                assert np.array_equal(shared.whole(getattr(shared.own, name)), getattr(alone.own, name)), name
            for count in (0, 1, 7, 10**6):
                assert same(shared.sampled(5, manifest.sequence, count), alone.sampled(5, manifest.sequence, count))
            for start in (0, 1):
                compare_batches(dealt(shared, settings, start), dealt(alone, settings, start), workers)
        # A rank that goes while another is in its last exchange may take that one down.
        workers.first(lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
