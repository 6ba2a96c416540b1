import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from weir.serving.batching.batcher import Batcher, Wakeup
from weir.serving.batching.queue import Outcome, Part
from weir.serving.errors import DeadlinePassedError, QueueFullError, ShuttingDownError


class Numbers(Batcher[int, int]):
    """Batches of whole requests: each a number and so many queries."""

    async def double(self, number: int, size: int, deadline: float = float("inf"), cost: float = 0) -> Outcome[int]:
        outcome = await self.submit([Part(number, size, cost)], deadline)
        [answer] = outcome.answer
        return Outcome(answer, outcome.queued)


class Recorder:
    def __init__(self) -> None:
        self.batches: list[int] = []
        self.depths: list[int] = []
        self.drops: list[str] = []

    def batch(self, queries: int) -> None:
        self.batches.append(queries)

    def depth(self, queries: int) -> None:
        self.depths.append(queries)

    def dropped(self, reason: str) -> None:
        self.drops.append(reason)


class Gate:
    """Doubles numbers, but only while open; reports when a batch has started."""

    def __init__(self) -> None:
        self.open, self.started = threading.Event(), threading.Event()
        self.seen: list[list[int]] = []
        self.threads: set[int] = set()

    def __call__(self, tasks: Sequence[int]) -> list[int]:
        self.seen.append(list(tasks))
        self.threads.add(threading.get_ident())
        self.started.set()
        assert self.open.wait(10)
        if -1 in tasks:
            raise RuntimeError("minus one")
        return [2 * task for task in tasks]


@contextmanager
def batcher(gate: Gate, max_batch: int = 100, limit: int = 100) -> Iterator[tuple[Numbers, Recorder]]:
    recorder = Recorder()
    built = Numbers(gate, recorder, max_batch=max_batch, max_cost=100, limit=limit, retry_after=0.5)
    try:
        yield built, recorder
    finally:
        gate.open.set()
        built.close()


async def started(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.started.wait, 10)


def test_it_fires_at_once_when_idle_and_coalesces_while_busy() -> None:
    async def scenario() -> None:
        gate = Gate()
        with batcher(gate) as (core, recorder):
            first = asyncio.create_task(core.double(1, 1))
            await started(gate)
            rest = [asyncio.create_task(core.double(number, 1)) for number in (2, 3, 4)]
            await asyncio.sleep(0)
            gate.open.set()
            outcomes = await asyncio.gather(first, *rest)
            assert [outcome.answer for outcome in outcomes] == [2, 4, 6, 8]
            assert gate.seen == [[1], [2, 3, 4]]
            assert recorder.batches == [1, 3]
            assert recorder.depths[-1] == 0
            assert len(gate.threads) == 1
            assert gate.threads != {threading.get_ident()}
            assert all(outcome.queued >= 0 for outcome in outcomes)

    asyncio.run(scenario())


def test_batches_keep_to_their_size_but_a_larger_task_runs_alone() -> None:
    async def scenario() -> None:
        gate = Gate()
        with batcher(gate, max_batch=3) as (core, recorder):
            tasks = [asyncio.create_task(core.double(0, 1))]
            await started(gate)
            tasks += [asyncio.create_task(core.double(n, size)) for n, size in ((1, 2), (2, 1), (3, 9), (4, 2))]
            await asyncio.sleep(0)
            gate.open.set()
            await asyncio.gather(*tasks)
            assert gate.seen == [[0], [1, 2], [3], [4]]
            assert recorder.batches == [1, 3, 9, 2]

    asyncio.run(scenario())


def test_a_full_queue_refuses_at_once_and_recovers() -> None:
    async def scenario() -> None:
        gate = Gate()
        with batcher(gate, limit=3) as (core, _):
            running = asyncio.create_task(core.double(0, 1))
            await started(gate)
            waiting = asyncio.create_task(core.double(1, 2))
            await asyncio.sleep(0)
            with pytest.raises(QueueFullError) as refusal:
                await core.double(2, 2)
            assert refusal.value.retry_after == 0.5
            last = asyncio.create_task(core.double(3, 1))
            await asyncio.sleep(0)
            gate.open.set()
            assert [o.answer for o in await asyncio.gather(running, waiting, last)] == [0, 2, 6]
            assert (await core.double(5, 3)).answer == 10

    asyncio.run(scenario())


def test_a_task_larger_than_the_queue_is_taken_when_nothing_waits() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.open.set()
        with batcher(gate, limit=3) as (core, _):
            assert (await core.double(4, 50)).answer == 8

    asyncio.run(scenario())


def test_those_whose_client_has_gone_are_not_run() -> None:
    async def scenario() -> None:
        gate = Gate()
        with batcher(gate) as (core, recorder):
            running = asyncio.create_task(core.double(0, 1))
            await started(gate)
            gone, stays = asyncio.create_task(core.double(1, 1)), asyncio.create_task(core.double(2, 1))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.sleep(0)
            gate.open.set()
            await asyncio.gather(running, stays)
            assert gate.seen == [[0], [2]]
            assert recorder.drops == ["cancelled"]

    asyncio.run(scenario())


def test_those_whose_deadline_has_passed_are_not_run() -> None:
    async def scenario() -> None:
        gate = Gate()
        with batcher(gate) as (core, recorder):
            running = asyncio.create_task(core.double(0, 1, time.monotonic() + 60))
            await started(gate)
            late = asyncio.create_task(core.double(1, 1, time.monotonic() - 0.001))
            await asyncio.sleep(0)
            gate.open.set()
            assert (await running).answer == 0
            with pytest.raises(DeadlinePassedError):
                await late
            assert gate.seen == [[0]]
            assert recorder.drops == ["deadline"]

    asyncio.run(scenario())


def test_a_failing_batch_fails_its_tasks_only() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.open.set()
        with batcher(gate) as (core, _):
            with pytest.raises(RuntimeError, match="minus one"):
                await core.double(-1, 1)
            assert (await core.double(3, 1)).answer == 6

    asyncio.run(scenario())


def test_closing_answers_what_is_queued_and_refuses_the_rest() -> None:
    async def scenario() -> None:
        gate = Gate()
        with batcher(gate) as (core, _):
            tasks = [asyncio.create_task(core.double(0, 1))]
            await started(gate)
            tasks.append(asyncio.create_task(core.double(1, 1)))
            await asyncio.sleep(0)
            gate.open.set()
            await asyncio.to_thread(core.close)
            assert [outcome.answer for outcome in await asyncio.gather(*tasks)] == [0, 2]
            with pytest.raises(ShuttingDownError):
                await core.double(2, 1)

    asyncio.run(scenario())


def test_many_submitters_each_get_their_own_answer() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.open.set()
        with batcher(gate, limit=10_000) as (core, recorder):
            outcomes = await asyncio.gather(*(core.double(number, 1) for number in range(2000)))
            assert [outcome.answer for outcome in outcomes] == [2 * number for number in range(2000)]
            assert sum(recorder.batches) == 2000

    asyncio.run(scenario())


def test_a_task_that_fails_does_not_fail_its_neighbours() -> None:
    async def scenario() -> None:
        gate = Gate()
        with batcher(gate) as (core, recorder):
            running = asyncio.create_task(core.double(0, 1))
            await started(gate)
            bad = asyncio.create_task(core.double(-1, 1))
            good = [asyncio.create_task(core.double(number, 1)) for number in (1, 2)]
            await asyncio.sleep(0)
            gate.open.set()
            assert [outcome.answer for outcome in await asyncio.gather(running, *good)] == [0, 2, 4]
            with pytest.raises(RuntimeError, match="minus one"):
                await bad
            assert gate.seen == [[0], [-1, 1, 2], [-1], [1], [2]]
            assert recorder.batches == [1, 3]
            assert recorder.depths[-1] == 0

    asyncio.run(scenario())


def test_of_two_tasks_the_one_that_fails_does_not_fail_the_other() -> None:
    async def scenario() -> None:
        gate = Gate()
        with batcher(gate) as (core, _):
            running = asyncio.create_task(core.double(0, 1))
            await started(gate)
            bad, good = asyncio.create_task(core.double(-1, 1)), asyncio.create_task(core.double(1, 1))
            await asyncio.sleep(0)
            gate.open.set()
            assert [outcome.answer for outcome in await asyncio.gather(running, good)] == [0, 2]
            with pytest.raises(RuntimeError, match="minus one"):
                await bad
            assert gate.seen == [[0], [-1, 1], [-1], [1]]

    asyncio.run(scenario())


def test_a_client_that_leaves_while_its_batch_runs_keeps_no_answer_from_the_others() -> None:
    async def scenario() -> None:
        gate, second = Gate(), Gate()

        def run(tasks: Sequence[int]) -> list[int]:
            return (second if len(tasks) > 1 else gate)(tasks)

        core = Numbers(run, Recorder(), max_batch=9, max_cost=100, limit=9, retry_after=0.5)
        first = asyncio.create_task(core.double(0, 1))
        await started(gate)
        gone, stays = asyncio.create_task(core.double(1, 1)), asyncio.create_task(core.double(2, 1))
        await asyncio.sleep(0)
        gate.open.set()
        await started(second)
        gone.cancel()
        await asyncio.sleep(0)
        second.open.set()
        assert (await asyncio.wait_for(stays, 10)).answer == 4
        assert (await first).answer == 0
        core.close()

    asyncio.run(scenario())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_too_few_answers_leave_nobody_waiting() -> None:
    async def scenario() -> None:
        core = Numbers(lambda tasks: [], Recorder(), max_batch=9, max_cost=100, limit=9, retry_after=0.5)
        with pytest.raises(ShuttingDownError):
            await asyncio.wait_for(core.double(1, 1), 10)
        core.close()

    asyncio.run(scenario())


def test_an_expensive_request_is_run_in_parts_and_the_cheap_go_between() -> None:
    async def scenario() -> None:
        gate = Gate()
        with batcher(gate) as (core, _):
            dear = asyncio.create_task(core.submit([Part(number, 2, 90) for number in (1, 2, 3)]))
            await started(gate)
            cheap = [asyncio.create_task(core.double(number, 1, cost=1)) for number in (7, 8)]
            await asyncio.sleep(0)
            gate.open.set()
            assert [outcome.answer for outcome in await asyncio.gather(*cheap)] == [14, 16]
            assert (await dear).answer == [2, 4, 6]
            assert gate.seen == [[1], [7, 8], [2], [3]]

    asyncio.run(scenario())


def test_a_part_that_fails_ends_its_request() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.open.set()
        with batcher(gate) as (core, recorder):
            with pytest.raises(RuntimeError, match="minus one"):
                await core.submit([Part(number, 1, 90) for number in (1, -1, 3)])
            assert gate.seen == [[1], [-1]]
            assert recorder.depths[-1] == 0

    asyncio.run(scenario())


def test_a_request_that_is_cancelled_between_its_parts_is_not_gone_on_with() -> None:
    async def scenario() -> None:
        gate = Gate()
        with batcher(gate) as (core, recorder):
            dear = asyncio.create_task(core.submit([Part(number, 1, 90) for number in (1, 2, 3)]))
            await started(gate)
            dear.cancel()
            await asyncio.sleep(0)
            gate.open.set()
            assert (await core.double(7, 1)).answer == 14
        # Cheap queries do not wait for the rest of the dear one: that is dropped before 7 or after it.
        assert gate.seen == [[1], [7]]
        assert recorder.drops == ["cancelled"]

    asyncio.run(scenario())


def test_a_batch_that_hangs_is_a_problem_until_it_ends() -> None:
    async def scenario() -> None:
        gate = Gate()
        with batcher(gate) as (core, _):
            assert core.problem(0.05) is None
            running = asyncio.create_task(core.double(1, 1))
            await started(gate)
            assert core.problem(60) is None
            await asyncio.sleep(0.1)
            assert "a batch of 1 requests has been running for 0 s" in (core.problem(0.05) or "")
            gate.open.set()
            await running
            assert core.problem(0.05) is None

    asyncio.run(scenario())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_when_the_thread_ends_everybody_is_told() -> None:
    class CallTimer(BaseException):
        pass

    async def scenario() -> None:
        gate = Gate()

        def run(tasks: Sequence[int]) -> list[int]:
            gate(tasks)
            raise CallTimer

        recorder = Recorder()
        core = Numbers(run, recorder, max_batch=1, max_cost=100, limit=9, retry_after=0.5)
        waiting = [asyncio.create_task(core.double(number, 1)) for number in range(3)]
        await started(gate)
        gate.open.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ShuttingDownError] * 3
        assert recorder.depths[-1] == 0
        core.close()
        assert core.problem(60) == "the thread that searches has ended"
        with pytest.raises(ShuttingDownError):
            await core.double(1, 1)

    asyncio.run(scenario())


class Halves:
    """Answers parts with the state of an index; the first batch waits until it is let go."""

    def __init__(self) -> None:
        self.state, self.seen = "old", list[tuple[str, int]]()
        self.started, self.go = threading.Event(), threading.Event()

    def __call__(self, tasks: Sequence[int]) -> list[str]:
        self.seen += [(self.state, task) for task in tasks]
        self.started.set()
        assert self.go.wait(10)
        return [f"{self.state} {task}" for task in tasks]

    def change(self) -> int:
        self.state = "new"
        return threading.get_ident()


@contextmanager
def halves(run: Halves) -> Iterator[tuple["Batcher[int, str]", Recorder]]:
    recorder = Recorder()
    core = Batcher(run, recorder, max_batch=100, max_cost=100, limit=100, retry_after=0.5)
    try:
        yield core, recorder
    finally:
        run.go.set()
        core.close()


def test_a_change_runs_between_two_batches_and_what_was_half_answered_starts_again() -> None:
    async def scenario() -> None:
        run = Halves()
        with halves(run) as (core, recorder):
            large = asyncio.create_task(core.submit([Part(number, 10, 90) for number in (1, 2, 3)]))
            assert await asyncio.to_thread(run.started.wait, 10)
            small = asyncio.create_task(core.submit([Part(9, 1, 1)]))
            changing = asyncio.create_task(asyncio.to_thread(core.between, run.change))
            while not core._changes:
                await asyncio.sleep(0.001)
            assert run.state == "old"
            run.go.set()
            owner = await changing
            assert owner != threading.get_ident()
            assert (await large).answer == ["new 1", "new 2", "new 3"]
            assert (await small).answer == ["new 9"]
        # The change came before what had waited for longer; the part that had been answered was asked again.
        assert run.seen[0] == ("old", 1)
        assert sorted(run.seen[1:]) == [("new", 1), ("new", 2), ("new", 3), ("new", 9)]
        assert recorder.depths[-1] == 0
        assert max(recorder.depths) == 31

    asyncio.run(scenario())


def test_a_change_that_fails_is_told_to_who_asked_for_it_and_queries_go_on() -> None:
    async def scenario() -> None:
        run = Halves()
        run.go.set()
        with halves(run) as (core, _):

            def fail() -> None:
                raise RuntimeError("midway")

            with pytest.raises(RuntimeError, match="midway"):
                await asyncio.to_thread(core.between, fail)
            assert (await core.submit([Part(1, 1)])).answer == ["old 1"]
            assert core.problem(10) is None

    asyncio.run(scenario())


def test_a_change_that_hangs_is_a_problem() -> None:
    run, hold, held = Halves(), threading.Event(), threading.Event()
    run.go.set()

    def hang() -> None:
        held.set()
        assert hold.wait(10)

    with halves(run) as (core, _):
        changing = threading.Thread(target=core.between, args=(hang,))
        changing.start()
        assert held.wait(10)
        time.sleep(0.05)
        assert "a change of the index has been running for 0 s, more than 0.01 s" in str(core.problem(0.01))
        hold.set()
        changing.join()
        assert core.problem(0.01) is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_closed_batcher_takes_no_change_and_refuses_those_that_wait() -> None:
    run, held, hold = Halves(), threading.Event(), threading.Event()
    run.go.set()
    refused = list[Exception]()

    def ask(core: "Batcher[int, str]") -> None:
        try:
            core.between(run.change)
        except ShuttingDownError as error:
            refused.append(error)

    def end() -> None:
        held.set()
        assert hold.wait(10)
        raise SystemExit  # the thread ends

    with halves(run) as (core, _):
        ended: Future[None] = Future()
        core._changes.append((end, ended))
        waiting = threading.Thread(target=ask, args=(core,))
        waiting.start()
        assert held.wait(10)
        hold.set()
        waiting.join(10)
        assert isinstance(ended.exception(10), ShuttingDownError)
        assert len(refused) == 1
        ask(core)
        assert len(refused) == 2


class Work(Wakeup):
    """WorkSource the batches: so many pieces of work, each of which notes when it was done."""

    def __init__(self, gate: Gate, pieces: int, *, hangs: threading.Event | None = None, fails: bool = False) -> None:
        super().__init__()
        self.gate, self.pieces, self.hangs, self.fails = gate, pieces, hangs, fails
        self.done: list[int] = []
        self.ended = 0

    @property
    def waits(self) -> bool:  # type: ignore[override]
        return len(self.done) < self.pieces

    def answer(self) -> None:
        self.done.append(len(self.gate.seen))
        self.gate.threads.add(threading.get_ident())
        if self.fails:
            raise OSError("no disk")
        if self.hangs is not None:
            self.hangs.wait(10)

    def end(self) -> None:
        self.ended += 1


def test_work_beside_takes_turns_with_batches_on_their_thread() -> None:
    gate = Gate()
    work = Work(gate, 3)

    async def run(numbers: Numbers) -> None:
        first = asyncio.create_task(numbers.double(1, 1))
        await asyncio.to_thread(gate.started.wait, 10)
        others = [asyncio.create_task(numbers.double(number, 1)) for number in (2, 3)]
        await asyncio.sleep(0.05)
        numbers.attach(work)
        gate.open.set()
        await asyncio.gather(first, *others)
        while work.waits:
            await asyncio.sleep(0.001)

    with batcher(gate, max_batch=1) as (numbers, _):
        asyncio.run(run(numbers))
    assert work.done == [1, 2, 3]
    assert len(gate.threads) == 1


def test_work_that_fails_ends_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    gate.open.set()
    with batcher(gate) as (numbers, _):
        numbers.attach(work := Work(gate, 2, fails=True))
        assert asyncio.run(numbers.double(4, 1)).answer == 8
        while work.waits:
            time.sleep(0.001)
        assert numbers.problem(10) is None
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["no disk"] * 2


def test_work_that_hangs_is_a_problem_until_it_ends() -> None:
    gate, hangs = Gate(), threading.Event()
    with batcher(gate) as (numbers, _):
        numbers.attach(Work(gate, 1, hangs=hangs))
        while (problem := numbers.problem(0.05)) is None:
            time.sleep(0.01)
        assert problem == "a batch of plain requests has been running for 0 s, more than 0.05 s"
        hangs.set()
        while numbers.problem(0.05) is not None:
            time.sleep(0.01)


def test_what_waits_beside_is_told_when_the_thread_ends() -> None:
    gate = Gate()
    with batcher(gate) as (numbers, _):
        numbers.attach(work := Work(gate, 0))
        assert not work.ended
    assert work.ended == 1
