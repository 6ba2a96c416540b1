"""The batching core: a bounded queue that one thread empties.

Tower and search belong to that thread alone (GPU indexes demand it). It fires at once when it is idle; what comes
while it is busy waits and is answered together, so batches grow with the load and nobody waits for company. A full
queue refuses at once. Jobs whose client has gone or whose deadline has passed are dropped when the batch forms.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from serving.errors import DeadlinePassedError, QueueFullError, ShuttingDownError

__all__ = ["Batcher", "Job", "Observer", "Outcome"]

log = logging.getLogger(__name__)

TaskT = TypeVar("TaskT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class Outcome(Generic[AnswerT]):
    """An answer, and how long its job waited for the batch to form, in seconds."""

    answer: AnswerT
    queued: float


@dataclass(eq=False)
class Job(Generic[TaskT, AnswerT]):
    """A task in the queue: `size` queries, of use until `deadline` on the monotonic clock."""

    task: TaskT
    size: int
    deadline: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Outcome[AnswerT]]
    arrived: float = field(default_factory=time.monotonic)


class Observer(Protocol):
    """Hears what the batcher does."""

    def batch(self, queries: int) -> None:
        """Take note that a batch of so many queries starts."""

    def depth(self, queries: int) -> None:
        """Take note of how many queries wait."""

    def dropped(self, reason: str) -> None:
        """Take note that a job was not run: ``cancelled`` or ``deadline``."""


class Batcher(Generic[TaskT, AnswerT]):
    """Answers tasks in batches.

    Parameters
    ----------
    run
        Called on the owner thread with the tasks of a batch; returns one answer per task, in order. An exception is
        the answer of all of them.
    max_batch, limit
        Queries in a batch (a larger single task runs alone), and queries that may wait.
    retry_after
        What refused clients are told to wait, in seconds.
    """

    def __init__(
        self,
        run: Callable[[Sequence[TaskT]], Sequence[AnswerT]],
        observer: Observer,
        *,
        max_batch: int,
        limit: int,
        retry_after: float,
    ) -> None:
        self._run, self._observer = run, observer
        self._max_batch, self._limit, self._retry_after = max_batch, limit, retry_after
        self._jobs: deque[Job[TaskT, AnswerT]] = deque()
        self._waiting = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="weir-search", daemon=True)
        self._thread.start()

    async def submit(self, task: TaskT, size: int, deadline: float = float("inf")) -> Outcome[AnswerT]:
        """Queue a task of `size` queries and wait for its answer.

        Raises `QueueFullError` or `ShuttingDownError` at once, `DeadlinePassedError` in place of a late run, and
        whatever `run` raises.
        """
        loop = asyncio.get_running_loop()
        job: Job[TaskT, AnswerT] = Job(task, size, deadline, loop, loop.create_future())
        with self._changed:
            self._admit(job)
            self._changed.notify()
        return await job.future

    def _admit(self, job: Job[TaskT, AnswerT]) -> None:
        if self._closed:
            raise ShuttingDownError
        # A task larger than the limit is taken when nothing waits, or it could never be.
        if self._jobs and self._waiting + job.size > self._limit:
            raise QueueFullError(self._waiting, self._limit, self._retry_after)
        self._jobs.append(job)
        self._count(job.size)

    def close(self) -> None:
        """Answer what is queued, refuse the rest, and return when the thread has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next():
            queued = time.monotonic()
            live = [job for job in batch if self._still_wanted(job, queued)]
            if live:
                self._observer.batch(sum(job.size for job in live))
                self._settle(live, queued)

    def _next(self) -> list[Job[TaskT, AnswerT]]:
        """Wait for jobs and take as many as fit; none means closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            batch: list[Job[TaskT, AnswerT]] = []
            size = 0
            while self._jobs and (not batch or size + self._jobs[0].size <= self._max_batch):
                batch.append(self._jobs.popleft())
                size += batch[-1].size
            self._count(-size)
            return batch

    def _count(self, change: int) -> None:
        self._waiting += change
        self._observer.depth(self._waiting)

    def _still_wanted(self, job: Job[TaskT, AnswerT], now: float) -> bool:
        if job.future.cancelled():
            self._observer.dropped("cancelled")
            return False
        if job.deadline <= now:
            self._observer.dropped("deadline")
            _deliver([(job, DeadlinePassedError())])
            return False
        return True

    def _settle(self, live: list[Job[TaskT, AnswerT]], formed: float) -> None:
        try:
            answers = self._run([job.task for job in live])
        except Exception as error:
            log.warning("a batch of %d requests failed: %s", len(live), error, exc_info=error)
            _deliver([(job, error) for job in live])
            return
        pairs = zip(live, answers, strict=True)
        _deliver([(job, Outcome(answer, formed - job.arrived)) for job, answer in pairs])


def _deliver(results: list[tuple[Job[TaskT, AnswerT], Outcome[AnswerT] | Exception]]) -> None:
    """Hand results to their event loop: one wake-up for all, as they share it."""

    def settle() -> None:
        for job, result in results:
            if job.future.done():
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    loop = results[0][0].loop
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)
