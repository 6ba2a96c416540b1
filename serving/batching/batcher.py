"""The batching core: a bounded queue that one thread empties.

Tower and search belong to that thread alone (GPU indexes demand it). An idle thread starts a batch at once; queries
that arrive while it is busy form the next batch, so batches grow with the load and no query waits for a batch to fill.
A full queue refuses at once. Jobs whose client has gone or whose deadline has passed are dropped when the batch forms.
Expensive jobs run part by part, in turn with batches of cheap ones (`weir.serving.batching.queue`). Changes of the
index run between two batches.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from weir.serving.batching.queue import Job, Lanes, Outcome, Part
from weir.serving.errors import DeadlinePassedError, ShuttingDownError

__all__ = ["BatchObserver", "Batcher", "Wakeup", "WorkSource"]

log = logging.getLogger(__name__)

TaskT = TypeVar("TaskT")
AnswerT = TypeVar("AnswerT")
Made = TypeVar("Made")

Result: TypeAlias = tuple[Job[TaskT, AnswerT], Outcome[list[AnswerT]] | Exception]
"""A job, and its answers or the error that it failed with."""


class WorkSource(Protocol):
    """Wakes the search thread, and may hold work of its own, which the search thread answers between batches."""

    @property
    def waits(self) -> bool:
        """Whether this source holds unanswered work."""

    def ring(self) -> None:
        """Wake the waiting thread, or make its next wait return at once; callable from any thread."""

    def wait(self) -> None:
        """Block until `ring` is called or this source holds work."""

    def answer(self) -> None:
        """Answer a batch of this source's work."""

    def end(self) -> None:
        """Refuse waiting and future work; called when the search thread ends."""


class Wakeup(WorkSource):
    """A work source that only wakes the search thread."""

    waits = False

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:  # noqa: D102 - see the protocol
        self._rung.set()

    def wait(self) -> None:  # noqa: D102
        self._rung.wait()
        self._rung.clear()

    def answer(self) -> None:
        """Do nothing, as there is no work."""

    def end(self) -> None:
        """Do nothing, as there is no work."""


class BatchObserver(Protocol):
    """Receives the batcher's metrics."""

    def batch(self, queries: int) -> None:
        """Record the start of a batch with this many queries."""

    def depth(self, queries: int) -> None:
        """Record the number of waiting queries."""

    def dropped(self, reason: str) -> None:
        """Record a job dropped before its run: ``cancelled`` or ``deadline``."""


class Batcher(Generic[TaskT, AnswerT]):
    """A thread that answers queued tasks in batches.

    Parameters
    ----------
    run
        Called on the thread with the tasks of a batch; returns one answer per task, in order. If it raises, each task
        of the batch is run alone; a task that fails again gets the exception.
    max_batch, max_cost
        Most queries in a batch, and the most that they may cost; a part beyond either limit runs alone.
    limit
        Most queries that wait; half as many for expensive jobs.
    retry_after
        Seconds that refused clients should wait.
    """

    def __init__(
        self,
        run: Callable[[Sequence[TaskT]], Sequence[AnswerT]],
        observer: BatchObserver,
        *,
        max_batch: int,
        max_cost: float,
        limit: int,
        retry_after: float,
    ) -> None:
        self._run, self._observer, self._retry_after = run, observer, retry_after
        self._lanes: Lanes[TaskT, AnswerT] = Lanes(max_batch, max_cost, limit)
        self._running: list[Job[TaskT, AnswerT]] = []
        self._running_since = 0.0
        self._changes: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._busy: tuple[str, float] | None = None
        self._beside: WorkSource = Wakeup()
        self._beside_was_last = False
        self._closed = False
        self._changing = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="weir-search", daemon=True)
        self._thread.start()

    async def submit(self, parts: Sequence[Part[TaskT]], deadline: float = float("inf")) -> Outcome[list[AnswerT]]:
        """Queue a request and wait for the answers to its parts, in order.

        Raises `QueueFullError` or `ShuttingDownError` at once, `DeadlinePassedError` if the deadline passes before the
        run, and the errors of `run`.
        """
        loop = asyncio.get_running_loop()
        job: Job[TaskT, AnswerT] = Job(deque(parts), deadline, loop, loop.create_future())
        with self._changing:
            if self._closed:
                raise ShuttingDownError
            self._lanes.admit(job, self._retry_after)
            self._observer.depth(self._lanes.waiting)
        self._beside.ring()
        return await job.future

    def between(self, change: Callable[[], Made]) -> Made:
        """Run a change of the index between two batches, ahead of waiting jobs, and return its result.

        Partly answered jobs start again, so that all parts of an answer see the same index. Raises `ShuttingDownError`,
        and the errors of the change.
        """
        done: Future[Made] = Future()
        with self._changing:
            if self._closed:
                raise ShuttingDownError
            self._changes.append((change, done))
        self._beside.ring()
        return done.result()

    def attach(self, beside: WorkSource) -> None:
        """Replace the work source: the search thread waits on it, and answers its work between batches."""
        with self._changing:
            before, self._beside = self._beside, beside
        before.ring()

    def problem(self, bound: float) -> str | None:
        """Return why queries get no answer; None if they do.

        Either the search thread has ended, or it has been busy with one batch or change for more than `bound` seconds.
        """
        if not self._thread.is_alive():
            return "the thread that searches has ended"
        busy, running, since = self._busy, self._running, self._running_since
        if busy is not None and (seconds := time.monotonic() - busy[1]) > bound:
            return f"{busy[0]} has been running for {seconds:.0f} s, more than {bound:g} s"
        if running and (seconds := time.monotonic() - since) > bound:
            return f"a batch of {len(running)} requests has been running for {seconds:.0f} s, more than {bound:g} s"
        return None

    def close(self) -> None:
        """Refuse new jobs, and return once the queued ones are answered and the search thread has ended."""
        with self._changing:
            self._closed = True
        self._beside.ring()
        self._thread.join()

    def _work(self) -> None:
        try:
            while batch := self._next():
                self._answer(batch)
        finally:
            self._abandon()

    def _abandon(self) -> None:
        """Refuse the remaining jobs and changes, as the search thread ends."""
        with self._changing:
            self._closed = True
            left = [*self._running, *self._lanes.clear()]
            changes = list(self._changes)
            self._observer.depth(0)
        for _, done in changes:
            done.set_exception(ShuttingDownError())
        _deliver([(job, ShuttingDownError()) for job in left])
        self._beside.end()

    def _next(self) -> list[Job[TaskT, AnswerT]]:
        """Return the jobs of the next batch, after running changes and the work source's work; empty once closed."""
        while True:
            with self._changing:
                beside, change = self._beside, self._changes.popleft() if self._changes else None
                has_turn = change is None and beside.waits and not (self._beside_was_last and self._lanes)
                self._beside_was_last = has_turn
                if change is None and not has_turn and (self._lanes or self._closed):
                    batch = self._lanes.take()
                    self._observer.depth(self._lanes.waiting)
                    return batch
            if change is not None:
                self._change(*change)
            elif has_turn:
                answered: Future[None] = Future()
                self._run_aside("a batch of plain requests", beside.answer, answered)
                if (error := answered.exception()) is not None:
                    log.error("what waits beside the batches failed", exc_info=error)
            else:
                beside.wait()

    def _change(self, change: Callable[[], Any], done: Future[Any]) -> None:
        self._run_aside("a change of the index", change, done)
        with self._changing:
            self._lanes.restart()
            self._observer.depth(self._lanes.waiting)

    def _run_aside(self, name: str, work: Callable[[], Any], done: Future[Any]) -> None:
        """Run work other than a batch, and set its result in `done`; `name` appears in `problem` if it hangs."""
        self._busy = name, time.monotonic()
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 - the caller of the work gets the error
            done.set_exception(error)
        except BaseException:  # this thread ends
            done.set_exception(ShuttingDownError())
            raise
        self._busy = None

    def _answer(self, batch: list[Job[TaskT, AnswerT]]) -> None:
        now = time.monotonic()
        live = [job for job in batch if self._still_wanted(job, now)]
        if not live:
            return
        self._running_since, self._running = now, live
        for job in live:
            job.queued = job.queued or now - job.arrived
        self._observer.batch(sum(job.parts[0].size for job in live))
        results = self._settle(live)
        self._running = []
        _deliver(results)

    def _still_wanted(self, job: Job[TaskT, AnswerT], now: float) -> bool:
        if job.future.done():
            self._observer.dropped("cancelled")
            return False
        if job.deadline <= now:
            self._observer.dropped("deadline")
            _deliver([(job, DeadlinePassedError())])
            return False
        return True

    def _settle(self, live: list[Job[TaskT, AnswerT]]) -> list[Result[TaskT, AnswerT]]:
        """Run the next part of each job; return the results of the jobs that are finished or have failed."""
        try:
            answers = self._run([job.parts[0].task for job in live])
        except Exception as error:  # noqa: BLE001 - the request that caused the error gets it
            if len(live) > 1:
                log.warning("a batch of %d requests failed, each is run by itself: %s", len(live), error)
                return [result for job in live for result in self._settle([job])]
            return [(live[0], error)]
        advanced = [self._advanced(job, answer) for job, answer in zip(live, answers, strict=True)]
        return [result for result in advanced if result is not None]

    def _advanced(self, job: Job[TaskT, AnswerT], answer: AnswerT) -> Result[TaskT, AnswerT] | None:
        """Store the answer to a job's next part; return the job's result after its last part, else None."""
        job.advance(answer)
        if job.parts:
            with self._changing:
                self._lanes.put_back(job)
                self._observer.depth(self._lanes.waiting)
            return None
        return job, Outcome(job.answers, job.queued)


def _deliver(results: Sequence[Result[TaskT, AnswerT]]) -> None:
    """Set the results in the futures of their jobs, which all belong to one event loop, with a single wake-up."""

    def settle() -> None:
        for job, result in results:
            if job.future.done():
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    if results and not (loop := results[0][0].loop).is_closed():
        loop.call_soon_threadsafe(settle)
