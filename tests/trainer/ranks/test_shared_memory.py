""""""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from weir.trainer.ranks import shared_memory
from weir.trainer.ranks.shared_memory import SharedMemory, packed, unpacked

Exchanges = list[tuple[list[list[int]], int, torch.dtype]]
DTYPES = [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.uint8, torch.bool]


@contextmanager
def meeting(ranks: int, patience: float = 20.0) -> Iterator[list[SharedMemory]]:
    """Let ranks meet, each in a thread of its own."""
    store = dist.HashStore()
    with ThreadPoolExecutor(ranks) as pool:
        met = list(pool.map(lambda rank: SharedMemory.meet(rank, ranks, store, patience), range(ranks)))
    try:
        yield met
    finally:
        for one in met:
            one.close()


def together(met: list[SharedMemory], work: Callable[[int, SharedMemory], object]) -> None:
    with ThreadPoolExecutor(len(met)) as pool:
        list(pool.map(work, range(len(met)), met))


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[int, Exchanges]:
    """Return a number of ranks, and of several exchanges what each sends to each, the width of a line, and a type."""
    ranks = draw(st.integers(2, 4))
    counts = st.lists(st.lists(st.integers(0, 40), min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks)
    one = st.tuples(counts, st.integers(0, 5), st.sampled_from(DTYPES))
    return ranks, draw(st.lists(one, min_size=1, max_size=6))


@given(exchanges())
def test_each_gets_what_the_others_send_to_it(drawn: tuple[int, Exchanges]) -> None:
    ranks, several = drawn
    with pytest.MonkeyPatch.context() as patch, meeting(ranks) as met:
        # Some exchanges are larger than what is kept.
        patch.setattr(shared_memory, "_KEPT", 256)

        def lines(number: int, rank: int, other: int) -> Tensor:
            counts, width, dtype = several[number]
            draw = torch.Generator().manual_seed(100 * number + 10 * rank + other)
            numbers = torch.randint(0, 99, (counts[rank][other], width), generator=draw)
            return (numbers % 2 if dtype == torch.bool else numbers).to(dtype)

        def work(rank: int, memory: SharedMemory) -> None:
            for number, (counts, width, dtype) in enumerate(several):
                receive = [counts[other][rank] for other in range(ranks)]
                into = torch.empty(sum(receive), width, dtype=dtype)
                own = torch.cat([lines(number, rank, other) for other in range(ranks)])
                memory.all_to_all(into, own, receive, counts[rank])
                assert torch.equal(into, torch.cat([lines(number, other, rank) for other in range(ranks)]))

        together(met, work)


def test_lines_may_lie_apart_and_have_a_gradient() -> None:
    def work(rank: int, memory: SharedMemory) -> None:
        into = torch.empty(2, 3)
        memory.all_to_all(into, torch.full((3, 2), float(rank), requires_grad=True).t(), [1, 1], [1, 1])
        assert into.tolist() == [[0] * 3, [1] * 3]

    with meeting(2) as met:
        together(met, work)


def test_a_single_number_may_be_an_expanded_one() -> None:
    def work(rank: int, memory: SharedMemory) -> None:
        into = torch.empty(2, dtype=torch.int64)
        memory.all_to_all(into, torch.tensor(rank).expand(2), [1, 1], [1, 1])
        assert into.tolist() == [0, 1]
        alone = torch.empty(1 - rank, dtype=torch.int64)
        memory.all_to_all(alone, torch.tensor(7).expand(rank), [0, 1 - rank], [rank, 0])
        assert alone.tolist() == [7] * (1 - rank)

    with meeting(2) as met:
        together(met, work)


def test_a_large_exchange_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_KEPT", 1000)

    def sizes(memory: SharedMemory) -> list[int]:
        return [os.fstat(box.file).st_size for box in memory._own]

    def exchange(met: list[SharedMemory], count: int) -> None:
        counts = [count, count]
        together(met, lambda _, one: one.all_to_all(torch.empty(2 * count), torch.ones(2 * count), counts, counts))

    with meeting(2) as met:
        exchange(met, 1 << 20)
        assert sizes(met[0]) == [8 << 20, 0]
        exchange(met, 1)
        exchange(met, 1)
        assert sizes(met[0]) == [1000, 1000]


def test_a_rank_that_ends_is_named() -> None:
    with meeting(3) as met:
        ended = met.pop()
        ended.close()
        ended._peers, ended._own = {}, []
        counts = [1, 1, 1]
        for one in met:
            with pytest.raises(RuntimeError, match="rank 2 has ended"):
                one.all_to_all(torch.empty(3), torch.ones(3), counts, counts)


def test_a_rank_that_does_not_come_is_named() -> None:
    with meeting(2, patience=0.2) as met:
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=r"rank 1 has not come to an exchange within 0\.2 s"):
            met[0].all_to_all(torch.empty(2), torch.ones(2), [1, 1], [1, 1])
        assert time.monotonic() - began >= 0.2


def test_a_rank_that_never_meets_the_others_is_waited_for_as_long_as_is_set() -> None:
    with pytest.raises(RuntimeError, match=r"not all of 2 ranks have started within 0\.2 s of rank 0"):
        SharedMemory.meet(0, 2, dist.HashStore(), 0.2)


TYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool]
SHAPES = st.lists(st.integers(0, 3), max_size=2)


@given(st.integers(0, 5), st.lists(st.tuples(st.sampled_from(TYPES), SHAPES), min_size=1, max_size=5))
def test_lines_come_out_as_they_went_in_whatever_their_number(count: int, kinds: list) -> None:  # type: ignore[type-arg]
    parts = tuple((100 * torch.randn(count, *shape)).to(dtype) for dtype, shape in kinds)
    lines = packed(parts)
    assert lines.dtype == torch.uint8
    assert len(lines) == count
    order = torch.randperm(count)
    for given_, found in zip(parts, unpacked(lines[order], parts), strict=True):
        assert found.dtype == given_.dtype
        assert torch.equal(found, given_[order])


def test_nothing_may_have_any_strides() -> None:
    nothing = (torch.randn(0, 1) * 2, torch.empty(2, 3).t()[:0], torch.empty(0, dtype=torch.int64))
    lines = packed(nothing)
    assert lines.shape == (0, 4 + 8 + 8)
    assert [one.shape for one in unpacked(lines, nothing)] == [one.shape for one in nothing]


def test_not_a_number_keeps_its_bits() -> None:
    odd = torch.tensor([0x7FA00001, 0x7FC00000, -1], dtype=torch.int32).view(torch.float32)
    [found] = unpacked(packed((odd,)), (odd,))
    assert torch.equal(found.view(torch.int32), odd.view(torch.int32))


def test_a_single_number_may_have_any_stride() -> None:
    one = torch.tensor(7).expand(1)
    [found] = unpacked(packed((one,)), (one,))
    assert found.tolist() == [7]
