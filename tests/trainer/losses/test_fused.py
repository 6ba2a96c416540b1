"""The pass by a GPU's kernels against that in chunks: the kernels interpreted on the CPU, and as they are on a GPU."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from weir.trainer import losses
from weir.trainer.losses.chunked import Plan, pass_in_chunks
from weir.trainer.losses.fused import _is_ready, fused_pass, is_fused

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, part of torch's builds for CUDA")
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="needs a GPU: Hopper or later"
)


@needs_triton
def test_interpreted_kernels_compute_what_chunks_do() -> None:
    script = Path(__file__).with_name("fused_interpreted.py")
    found = subprocess.run(
        [sys.executable, script], env=os.environ | {"TRITON_INTERPRET": "1"}, check=True, stdout=subprocess.PIPE
    )
    worst = torch.tensor(json.loads(found.stdout))
    assert worst.shape == (10, 4)
    assert worst.max() < 1e-5


def test_a_cpu_has_no_kernels() -> None:
    assert not any(is_fused(torch.zeros(2, 8, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_where_triton_does_not_start_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    _is_ready.cache_clear()
    assert not _is_ready()
    assert "take logits in chunks, which is slower: Triton does not start: " in caplog.text


def batch(rows: int, columns: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Plan, Tensor]:
    """A batch on the GPU with many pairs outside the sum, a row without columns among its rows."""
    draw = torch.Generator(device="cuda").manual_seed(rows)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device="cuda")

    def places(below: int, count: int) -> Tensor:
        return torch.randint(below, (count,), generator=draw, device="cuda")

    query, items = (functional.normalize(numbers(count, width)).to(dtype) for count in (rows, columns))
    none = torch.stack([torch.full((columns,), rows - 1, device="cuda"), torch.arange(columns, device="cuda")], 1)
    hits = torch.cat([torch.stack([places(rows, 5000), places(columns, 5000)], 1), none])
    times = places(3, columns) + 1
    plan = Plan(hits, times, numbers(columns) + times.log(), numbers(rows), improved=True, scale=10.0, chunk_rows=64)
    return query, items, 5 + numbers(rows), plan, numbers(rows).abs()


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("shape", [(1, 1, 8), (300, 1000, 64), (257, 4001, 128), (2000, 65, 40)])
def test_a_gpu_computes_what_chunks_of_float64_do(
    shape: tuple[int, int, int], dtype: torch.dtype, error: float
) -> None:
    query, items, pos, plan, weight = batch(*shape, dtype)
    assert is_fused(query)
    found = fused_pass(query, items, pos, plan, weight)
    again = fused_pass(query, items, pos, plan, weight)
    wide = Plan(plan.hits, plan.times, plan.column_bias.double(), plan.row_bias.double(), plan.improved, plan.scale, 64)
    exact = pass_in_chunks(query.double(), items.double(), pos.double(), wide, weight.double())
    for mine, repeated, other in zip(found, again, exact, strict=True):
        assert torch.equal(mine, repeated)
        assert (mine - other).norm() <= error * other.norm()


@pytest.mark.gpu
@needs_hopper
def test_the_loss_takes_the_kernels_and_needs_no_memory_for_logits() -> None:
    query, items = (torch.randn(count, 64, device="cuda", requires_grad=True) for count in (4096, 65536))
    own = torch.arange(4096, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    pos = (query * items[: len(query)]).sum(1)
    found = losses.sampled_softmax_in_batch(query, items, pos=pos, hits=torch.stack([own, own], 1), correction="none")
    torch.autograd.grad(found.mean(), (query, items))
    most = torch.cuda.max_memory_allocated() - before
    assert most < 4096 * 65536  # a byte for each logit
