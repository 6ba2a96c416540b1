"""The bounded queue of waiting jobs, in two lanes: cheap queries never wait behind all expensive ones."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from weir.serving.errors import QueueFullError

__all__ = ["Job", "Lane", "Lanes", "Outcome", "Part"]

TaskT = TypeVar("TaskT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class Part(Generic[TaskT]):
    """A part of a request that is answered in one batch.

    `task` has `size` queries, whose search costs about `cost` (`weir.serving.search.cost`).
    """

    task: TaskT
    size: int
    cost: float = 0.0


@dataclass(frozen=True)
class Outcome(Generic[AnswerT]):
    """The answer to a job, and the seconds that the job waited for its first batch (`queued`)."""

    answer: AnswerT
    queued: float


@dataclass(eq=False)
class Job(Generic[TaskT, AnswerT]):
    """A queued request: its `parts` without an answer, and the parts `done` with their `answers`.

    The job is dropped after `deadline` (monotonic clock). `future` of `loop` gets the result. `queued` is how many
    seconds the job waited for its first batch.
    """

    parts: deque[Part[TaskT]]
    deadline: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Outcome[list[AnswerT]]]
    done: list[Part[TaskT]] = field(default_factory=list)
    answers: list[AnswerT] = field(default_factory=list)
    arrived: float = field(default_factory=time.monotonic)
    queued: float = 0.0

    @property
    def size(self) -> int:
        """Number of unanswered queries."""
        return sum(part.size for part in self.parts)

    @property
    def cost(self) -> float:
        """Estimated cost of the unanswered queries."""
        return sum(part.cost for part in self.parts)

    def advance(self, answer: AnswerT) -> None:
        """Store the answer to the first of `parts`, and move that part to `done`."""
        self.done.append(self.parts.popleft())
        self.answers.append(answer)

    def restart(self) -> None:
        """Drop all answers, so that every part is answered again."""
        self.parts.extendleft(reversed(self.done))
        self.done.clear()
        self.answers.clear()


class Lane(Generic[TaskT, AnswerT]):
    """Waiting jobs in order of arrival; new jobs are refused beyond `limit` waiting queries."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._jobs: deque[Job[TaskT, AnswerT]] = deque()
        self.waiting = 0

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def admit(self, job: Job[TaskT, AnswerT], retry_after: float) -> None:
        """Queue a new job; raises `QueueFullError`. An empty lane admits even a job larger than the limit."""
        if self._jobs and self.waiting + job.size > self._limit:
            raise QueueFullError(self.waiting, self._limit, retry_after)
        self.append(job)

    def append(self, job: Job[TaskT, AnswerT]) -> None:
        """Queue a job last, even beyond the limit."""
        self._jobs.append(job)
        self.waiting += job.size

    def take(self, most: int, cost: float) -> list[Job[TaskT, AnswerT]]:
        """Remove and return the first jobs whose next parts together fit into `most` queries and `cost`.

        The first job is taken even if it does not fit.
        """
        batch: list[Job[TaskT, AnswerT]] = []
        while self._jobs:
            part = self._jobs[0].parts[0]
            most, cost = most - part.size, cost - part.cost
            if batch and (most < 0 or cost < 0):
                break
            batch.append(self._jobs.popleft())
            self.waiting -= batch[-1].size
        return batch

    def restart(self) -> None:
        """Drop the answers of all waiting jobs, so that every job starts again with its first part."""
        for job in self._jobs:
            job.restart()
        self.waiting = sum(job.size for job in self._jobs)

    def clear(self) -> list[Job[TaskT, AnswerT]]:
        """Remove and return all jobs."""
        jobs = list(self._jobs)
        self._jobs.clear()
        self.waiting = 0
        return jobs


class Lanes(Generic[TaskT, AnswerT]):
    """The cheap and the expensive lane, which take turns while both have jobs.

    Parameters
    ----------
    max_batch, max_cost
        Most queries and cost of a batch. A job is cheap if it has one part and costs at most half of `max_cost`.
    limit
        Most queries that wait in the cheap lane; half as many in the expensive one.
    """

    def __init__(self, max_batch: int, max_cost: float, limit: int) -> None:
        self._max_batch, self._max_cost = max_batch, max_cost
        self._cheap: Lane[TaskT, AnswerT] = Lane(limit)
        self._expensive: Lane[TaskT, AnswerT] = Lane(max(1, limit // 2))
        self._cheap_was_last = False

    def __bool__(self) -> bool:
        return bool(self._cheap) or bool(self._expensive)

    @property
    def waiting(self) -> int:
        """Number of waiting queries."""
        return self._cheap.waiting + self._expensive.waiting

    def admit(self, job: Job[TaskT, AnswerT], retry_after: float) -> None:
        """Queue a new job in the lane for its cost; raises `QueueFullError`."""
        cheap = len(job.parts) == 1 and job.cost <= self._max_cost / 2
        (self._cheap if cheap else self._expensive).admit(job, retry_after)

    def put_back(self, job: Job[TaskT, AnswerT]) -> None:
        """Queue a partly answered job again, behind the other expensive jobs."""
        self._expensive.append(job)

    def take(self) -> list[Job[TaskT, AnswerT]]:
        """Remove and return the jobs whose next parts form the next batch; empty if no job waits."""
        cheap = bool(self._cheap) and not (self._cheap_was_last and self._expensive)
        self._cheap_was_last = cheap
        return (self._cheap if cheap else self._expensive).take(self._max_batch, self._max_cost)

    def restart(self) -> None:
        """Drop the answers of all waiting jobs, so that every job starts again with its first part."""
        self._cheap.restart()
        self._expensive.restart()

    def clear(self) -> list[Job[TaskT, AnswerT]]:
        """Remove and return all jobs."""
        return [*self._cheap.clear(), *self._expensive.clear()]
