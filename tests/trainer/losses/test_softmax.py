"""The softmax losses against the reference; a GPU's kernels against the pass in chunks."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from tests.trainer.largest import Largest
from weir.trainer import losses
from weir.trainer.losses.chunked import Plan, _add_product, pass_in_chunks
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


Draw = Callable[..., Tensor]
CORRECTIONS = ("none", "standard", "improved")


def make_batch(
    seed: int, rows: int, columns: int, num_hits: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    numbers = np.random.default_rng(seed)
    query, items = (torch.from_numpy(numbers.normal(size=(size, 4))).to(dtype) for size in (rows, columns))
    hits = np.stack([numbers.integers(0, rows, num_hits), numbers.integers(0, columns, num_hits)], 1)
    return (
        query,
        items,
        {
            "positive": torch.from_numpy(numbers.integers(0, columns, rows)),
            "hits": torch.from_numpy(hits),
            "log_q_pos": torch.from_numpy(np.log(numbers.uniform(1e-4, 0.5, rows))).to(dtype),
            "log_q_neg": torch.from_numpy(np.log(numbers.uniform(1e-4, 0.5, columns))).to(dtype),
        },
    )


def chunked(query: Tensor, items: Tensor, batch: dict[str, Tensor], **options: Any) -> Tensor:
    """The loss of rows whose positives are columns, which no row takes for a negative of its own."""
    rest = dict(batch)
    positive = rest.pop("positive")
    own = torch.stack([torch.arange(len(query)), positive], 1)
    pos = (query * items[positive]).sum(1) / options.get("temperature", 1.0)
    hits = torch.cat([rest.pop("hits"), own])
    return losses.sampled_softmax_in_batch(query, items, pos=pos, hits=hits, **rest, **options)


def plain(query: Tensor, items: Tensor, batch: dict[str, Tensor], correction: str, temperature: float) -> Tensor:
    logits = query @ items.T / temperature
    keep = torch.ones(logits.shape, dtype=torch.bool)
    keep[torch.arange(len(query)), batch["positive"]] = False
    keep[batch["hits"][:, 0], batch["hits"][:, 1]] = False
    log_q_neg = batch["log_q_neg"]
    if correction == "improved":
        log_q_neg = losses.exclude_positive(log_q_neg, batch["log_q_pos"])
    return losses.sampled_softmax(
        logits.gather(1, batch["positive"][:, None])[:, 0],
        logits,
        log_q_pos=batch["log_q_pos"],
        log_q_neg=log_q_neg,
        keep=keep,
        correction=correction,
    )


def with_gradients(
    loss: Callable[[Tensor, Tensor], Tensor], query: Tensor, items: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    query, items = query.clone().requires_grad_(), items.clone().requires_grad_()
    value = loss(query, items)
    return value.detach(), *torch.autograd.grad((value * weight).sum(), (query, items))


@pytest.mark.parametrize("correction", CORRECTIONS)
@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 7),
    num_hits=st.integers(0, 40),
    chunk_rows=st.integers(1, 12),
    temperature=st.sampled_from([0.02, 0.2, 1.0]),  # logits far apart, and within bounds
    equal_weights=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equals_the_plain_loss(
    draw: Draw,
    *,
    correction: str,
    rows: int,
    columns: int,
    num_hits: int,
    chunk_rows: int,
    temperature: float,
    equal_weights: bool,
    seed: int,
) -> None:
    query, items, batch = make_batch(seed, rows, columns, num_hits)
    weight = torch.full((rows,), 0.7, dtype=torch.float64) if equal_weights else draw(seed, rows)
    found = with_gradients(
        lambda q, i: chunked(q, i, batch, correction=correction, temperature=temperature, chunk_rows=chunk_rows),
        query,
        items,
        weight,
    )
    expected = with_gradients(lambda q, i: plain(q, i, batch, correction, temperature), query, items, weight)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("correction", CORRECTIONS)
@settings(max_examples=30, deadline=None)
@given(
    times=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    num_hits=st.integers(0, 20),
    chunk_rows=st.integers(1, 6),
    equal_weights=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_a_column_that_counts_several_times_is_that_many_columns(
    draw: Draw, *, correction: str, times: list[int], num_hits: int, chunk_rows: int, equal_weights: bool, seed: int
) -> None:
    query, items, batch = make_batch(seed, 5, len(times), num_hits)
    weight = torch.full((5,), 0.7, dtype=torch.float64) if equal_weights else draw(seed, 5)
    counts = torch.tensor(times)
    found = with_gradients(
        lambda q, i: chunked(q, i, batch, times=counts, correction=correction, chunk_rows=chunk_rows),
        query,
        items,
        weight,
    )
    # A pair that is left out stands for one of every copy of its column, the positive's included.
    of_column = torch.arange(len(times)).repeat_interleave(counts)
    out = torch.cat([batch["hits"], torch.stack([torch.arange(5), batch["positive"]], 1)])
    pair, copy = torch.nonzero(out[:, 1, None] == of_column, as_tuple=True)
    copies = batch | {
        "positive": (counts.cumsum(0) - counts)[batch["positive"]],
        "hits": torch.stack([out[pair, 0], copy], 1),
        "log_q_neg": batch["log_q_neg"][of_column],
    }
    expected = with_gradients(lambda q, i: plain(q, i[of_column], copies, correction, 1.0), query, items, weight)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("correction", ["none", "standard"])
def test_gradient_by_finite_differences(correction: str) -> None:
    query, items, batch = make_batch(0, 5, 6, 4)
    assert torch.autograd.gradcheck(
        lambda q, i: chunked(q, i, batch, correction=correction, chunk_rows=2),
        (query.requires_grad_(), items.requires_grad_()),
    )


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_row_without_negatives_is_silent(correction: str) -> None:
    query, items, batch = make_batch(1, 3, 4, 0)
    batch["hits"] = torch.tensor([[1, column] for column in range(4)])
    value, query_gradient, _ = with_gradients(
        lambda q, i: chunked(q, i, batch, correction=correction),
        query,
        items,
        torch.ones(3, dtype=torch.float64),
    )
    assert value[1] == 0
    assert (query_gradient[1] == 0).all()
    batch["hits"] = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    value, *gradients = with_gradients(
        lambda q, i: chunked(q, i, batch, correction=correction),
        query,
        items,
        torch.ones(3, dtype=torch.float64),
    )
    assert (value == 0).all()
    assert all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_survives_extreme_logits(correction: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    _, _, batch = make_batch(2, 6, 7, 5, torch.float32)
    for _ in range(20):
        signs = (torch.randint(-1, 2, (size, 4), generator=generator) for size in (6, 7))
        query, items = (100 * sign.to(dtype) for sign in signs)
        results = with_gradients(
            lambda q, i: chunked(q, i, batch, correction=correction, temperature=0.5),
            query,
            items,
            torch.ones(6, dtype=dtype),
        )
        assert all(result.isfinite().all() for result in results)


@pytest.mark.parametrize("correction", CORRECTIONS)
@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    chunk_rows=st.integers(1, 12),
    temperature=st.sampled_from([0.02, 0.2, 1.0]),  # logits far apart, and within bounds
    equal_weights=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_bfloat16_rounds_the_factors_only(
    *, correction: str, rows: int, columns: int, chunk_rows: int, temperature: float, equal_weights: bool, seed: int
) -> None:
    """The float64 oracle of the same rounded inputs is met within the roundings of 8 bits, each 2^-8 at most.

    One is that of the result. Before it, the gradient of a query sums products with one rounded factor, that of an item
    with two; roundings of terms of either sign add up to at most 2^-8 of the sum of the sizes.
    """
    query, items, batch = make_batch(seed, rows, columns, rows, torch.bfloat16)
    pos = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, rows)).bfloat16()
    weight = torch.full((rows,), 0.5) if equal_weights else 2.0 ** torch.arange(rows).remainder(3)
    options = {"log_q_pos": batch["log_q_pos"].double(), "correction": correction}
    narrow = [tensor.clone().requires_grad_() for tensor in (query, items, pos)]
    settled = options | {"log_q_neg": batch["log_q_neg"].double(), "hits": batch["hits"]}
    value = losses.sampled_softmax_in_batch(
        narrow[0], narrow[1], pos=narrow[2], temperature=temperature, chunk_rows=chunk_rows, **settled
    )
    found = torch.autograd.grad((value * weight.bfloat16()).sum(), narrow)

    logits = (query.double() @ items.double().T / temperature).requires_grad_()
    exact_pos = pos.double().requires_grad_()
    keep = torch.ones(logits.shape, dtype=torch.bool)
    keep[batch["hits"][:, 0], batch["hits"][:, 1]] = False
    log_q_neg = batch["log_q_neg"].double()
    if correction == "improved":
        log_q_neg = losses.exclude_positive(log_q_neg, options["log_q_pos"])
    exact = losses.sampled_softmax(exact_pos, logits, log_q_neg=log_q_neg, keep=keep, **options)
    of_logits, of_pos = torch.autograd.grad((exact * weight).sum(), (logits, exact_pos))
    of_logits /= temperature

    unit, slack = 2.0**-8, 1e-4  # and what float32 loses
    torch.testing.assert_close(value.double(), exact, rtol=unit + slack, atol=slack)
    torch.testing.assert_close(found[2].double(), of_pos, rtol=unit + slack, atol=1e-12)
    for mine, factor, vectors, roundings in (
        (found[0], of_logits, items.double(), 2),
        (found[1], of_logits.T, query.double(), 3),
    ):
        bound = (roundings * unit + slack) * (factor.abs() @ vectors.abs())
        assert ((mine.double() - factor @ vectors).abs() <= bound + 1e-12).all()


def test_bfloat16_calls_the_product_of_a_gpu_as_it_asks() -> None:
    """Shapes and dtypes by torch's own rules; nothing is computed, so it needs no GPU, and says nothing of values."""
    with FakeTensorMode():
        total = torch.zeros(3, 5, device="cuda")
        left, right = (torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for shape in ((3, 4), (5, 4)))
        result = _add_product(total, left, right.T, 0.5)
    assert (result.shape, result.dtype, result.device.type) == ((3, 5), torch.float32, "cuda")


@pytest.mark.parametrize("equal_weights", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tensor_is_larger_than_a_chunk(dtype: torch.dtype, equal_weights: bool) -> None:
    """Neither loss nor gradient makes one: the module promises memory for chunk_rows x N logits."""
    query, items, batch = make_batch(4, 200, 300, 100, dtype)
    weight = torch.full((200,), 0.5, dtype=dtype) if equal_weights else torch.arange(200).to(dtype)
    with Largest() as largest:
        with_gradients(lambda q, i: chunked(q, i, batch, chunk_rows=10), query, items, weight)
    assert largest.numel == 10 * 300


def test_keeps_the_dtype_and_skips_the_gradient_when_nobody_asks() -> None:
    query, items, batch = make_batch(3, 5, 6, 4, torch.float32)
    exact = chunked(query, items, batch)
    assert not exact.requires_grad
    value = chunked(query.bfloat16(), items.bfloat16(), batch)
    assert value.dtype == torch.bfloat16
    torch.testing.assert_close(value.float(), exact, rtol=0.1, atol=0.1)
    for trained in ("query", "items"):
        inputs = {"query": query.clone(), "items": items.clone()}
        inputs[trained].requires_grad_()
        chunked(inputs["query"], inputs["items"], batch).mean().backward()
        assert inputs[trained].grad is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"correction": "yes"}, "correction must be one of improved, none, standard, got 'yes'"),
        ({"correction": "standard", "log_q_pos": None}, "log_q_pos must be given for correction='standard', got None"),
        ({"log_q_neg": None}, "log_q_neg must be given for correction='improved', got None"),
        ({"log_q_pos": torch.zeros(2)}, "log_q_pos must be below 0"),
        ({"log_q_neg": torch.full((3,), torch.nan)}, "log_q_neg must hold log-probabilities, got 3 NaN"),
        ({"log_q_neg": torch.full((3,), -torch.inf)}, "log_q_neg must be finite wherever it is used"),
        ({"log_q_neg": torch.zeros(2)}, r"log_q_neg must have shape \(n=3\), got \(2,\)"),
        ({"pos": torch.zeros(1)}, r"pos must have shape \(B=2\), got \(1,\)"),
        ({"pos": torch.zeros(2).double()}, "pos must have the dtype of query, torch.float32, got torch.float64"),
        ({"hits": torch.tensor([[2, 0]])}, r"hits\[:, 0\] must lie in \[0, 2\), got values from 2 to 2"),
        ({"hits": torch.tensor([[0, 3]])}, r"hits\[:, 1\] must lie in \[0, 3\), got values from 3 to 3"),
        ({"hits": torch.tensor([0, 1])}, r"hits must have shape \(H, pair=2\), got \(2,\)"),
        ({"items": torch.zeros(3, 5)}, r"items must have shape \(N, d=4\), got \(3, 5\)"),
        ({"query": torch.zeros(0, 4)}, "query must have at least one element in dimension 0"),
        ({"temperature": 0.0}, "temperature must be a finite number above 0, got 0.0"),
        ({"times": torch.ones(2, dtype=torch.int64)}, r"times must have shape \(N=3\), got \(2,\)"),
        ({"times": torch.tensor([1, 0, 2])}, "times must be at least 1, got 0"),
        ({"times": torch.ones(3)}, "times must hold integers, got torch.float32"),
        ({"chunk_rows": 0}, "chunk_rows must be at least 1, got 0"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "query": torch.zeros(2, 4),
        "items": torch.zeros(3, 4),
        "pos": torch.zeros(2),
        "hits": torch.zeros(0, 2, dtype=torch.int64),
        "log_q_pos": torch.full((2,), -1.0),
        "log_q_neg": torch.full((3,), -1.0),
    }
    with pytest.raises(ValueError, match=message):
        losses.sampled_softmax_in_batch(**(arguments | changes))


@given(seed=st.integers(0, 2**31))
def test_both_corrections_pull_each_row_in_the_same_direction(seed: int) -> None:
    query, items, batch = make_batch(seed, 5, 12, 5)
    found = []
    for correction in ("standard", "improved"):
        leaf = query.clone().requires_grad_()
        found.append(torch.autograd.grad(plain(leaf, items, batch, correction, 0.5).sum(), leaf)[0])
    torch.testing.assert_close(torch.cosine_similarity(*found, 1), torch.ones(5, dtype=torch.float64))
