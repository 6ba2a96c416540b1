import asyncio
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.serving.batching.queue import Job, Lanes, Part
from weir.serving.errors import QueueFullError

LOOP = asyncio.new_event_loop()


def job(*costs: float, size: int = 1, name: object = None) -> Job[object, object]:
    return Job(deque(Part(name, size, cost) for cost in costs), float("inf"), LOOP, LOOP.create_future())


def lanes(limit: int = 100) -> Lanes[object, object]:
    return Lanes(max_batch=4, max_cost=10, limit=limit)


def test_cheap_and_expensive_jobs_take_turns_and_never_share_a_batch() -> None:
    queue = lanes()
    dear = [job(9), job(3, 3), job(6)]
    cheap = [job(1) for _ in range(9)]
    for each in (*dear, *cheap):
        queue.admit(each, 0.1)
    assert queue.take() == cheap[:4]
    assert queue.take() == dear[:1]
    assert queue.take() == cheap[4:8]
    assert queue.take() == dear[1:]
    assert queue.take() == cheap[8:]
    assert queue.take() == []


def test_a_batch_keeps_to_its_cost_but_a_part_beyond_it_is_run_alone() -> None:
    queue = lanes()
    jobs = [job(5), job(5), job(1), job(50), job(6), job(4, 4)]
    for each in jobs:
        queue.admit(each, 0.1)
    assert [queue.take() for _ in range(4)] == [jobs[0:2], [jobs[3]], [jobs[2]], jobs[4:6]]


def test_the_lane_of_the_expensive_fills_up_by_itself() -> None:
    queue = lanes(limit=4)
    for each in (job(9), job(9)):
        queue.admit(each, 0.1)
    with pytest.raises(QueueFullError, match="2 queries are waiting, at most 2 may"):
        queue.admit(job(9), 0.1)
    for _ in range(4):
        queue.admit(job(1), 0.1)
    with pytest.raises(QueueFullError, match="4 queries are waiting, at most 4 may"):
        queue.admit(job(1), 0.1)
    assert queue.waiting == 6
    assert len(queue.clear()) == 6
    assert queue.waiting == 0


def test_the_lane_of_the_expensive_holds_one_query_where_the_limit_is_one() -> None:
    queue = lanes(limit=1)
    queue.admit(job(9), 0.1)
    with pytest.raises(QueueFullError, match="1 queries are waiting, at most 1 may"):
        queue.admit(job(9), 0.1)


@given(st.lists(st.lists(st.floats(0, 30), min_size=1, max_size=5), max_size=20), st.integers(1, 6))
def test_every_part_is_taken_once_in_order_within_bounds(costs: list[list[float]], size: int) -> None:
    queue = lanes(limit=10**6)
    for number, each in enumerate(costs):
        queue.admit(job(*each, size=size, name=number), 0.1)
    taken: dict[int, list[float]] = {number: [] for number in range(len(costs))}
    while queue:
        batch = queue.take()
        assert batch
        together = [each.parts.popleft() for each in batch]
        assert len(together) == 1 or (sum(part.size for part in together) <= 4 and sum(p.cost for p in together) <= 10)
        for each, part in zip(batch, together, strict=True):
            taken[part.task].append(part.cost)  # type: ignore[index]
            if each.parts:
                queue.put_back(each)
    assert list(taken.values()) == costs
    assert queue.waiting == 0


def test_what_starts_again_waits_with_all_its_parts_in_order() -> None:
    queue = lanes()
    half, whole = job(6, 7, 8, size=2), job(9, size=3)
    queue.admit(half, 0.1)
    [taken] = queue.take()
    assert taken is half
    for number in range(2):
        half.advance(f"answer {number}")
    queue.put_back(half)
    queue.admit(whole, 0.1)
    assert (queue.waiting, half.answers, len(half.parts)) == (5, ["answer 0", "answer 1"], 1)
    queue.restart()
    assert (queue.waiting, half.answers, half.done) == (9, [], [])
    assert [part.cost for part in half.parts] == [6, 7, 8]
    assert [each.size for each in queue.clear()] == [6, 3]
