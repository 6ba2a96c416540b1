"""Spans against a model that knows of each row whether it has been counted."""

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts import SourceSpan
from contracts.redaction import LetterFile
from contracts.source_span import UNLISTED
from pipelines.progress import LettersWritten
from pipelines.stream.slices import Slice, Tile
from pipelines.stream.spans import Coverage, OutOfOrderError, with_letters

NO_ROWS = pa.record_batch({})
NOBODY = np.empty(0, np.int64)


@dataclass
class Model:
    """The commits of one partition, whose row at position x is of window `of[x]`."""

    of: list[int]
    span: SourceSpan = field(default_factory=lambda: SourceSpan(start=0, stop=0, resume=0, size=0))
    counted: dict[int, int] = field(default_factory=dict)
    rows: set[int] = field(default_factory=set)

    def is_counted(self, at: int) -> bool:
        return at < max(self.span.resume, self.counted.get(self.of[at], 0))

    def commit(self, new: set[int], span: SourceSpan) -> None:
        """Count rows; what the commits say of every row that was read has to be the truth then, and later."""
        assert not new & self.rows
        self.rows |= new
        self.span = span
        bounds = {at: span.bound(at) for at in {self.of[row] for row in new}}
        self.counted |= {at: max(self.counted.get(at, 0), bound) for at, bound in bounds.items()}
        assert {at for at in range(len(self.of)) if self.is_counted(at)} == self.rows
        waits = [at for at in range(span.stop) if at not in self.rows]
        for at in waits:
            assert min(span.waiting.get(key, span.stop) for key in (self.of[at], UNLISTED)) <= at
        assert span.resume <= min(waits, default=span.stop)

    def run(self, stop: int, closed: int) -> None:
        """Commit the windows up to `closed` as a bounded run does, which says nothing of the others."""
        new = {at for at in range(self.span.resume, stop) if self.of[at] <= closed and not self.is_counted(at)}
        waits = (at for at in range(self.span.resume, stop) if self.of[at] > closed)
        self.commit(new, SourceSpan(start=self.span.resume, stop=stop, resume=min(waits, default=stop), size=stop))


@dataclass
class Job:
    """What one job has read and not brought: rows by the window that they come with, and tiles."""

    model: Model
    at: int
    watermark: int
    rows: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    tiles: dict[int, list[Tile]] = field(default_factory=lambda: defaultdict(list))

    def read(self, stop: int) -> None:
        home, of = self.watermark, self.model.of
        waiting: dict[int, int] = {}
        for at in range(self.at, stop):
            self.rows[max(of[at], home)].append((at, stop))
            if of[at] > home:
                waiting.setdefault(of[at], at)
        self.tiles[home].append(Tile(self.at, stop, stop, waiting, (), NOBODY))
        self.at = stop

    def bring(self, window: int) -> None:
        rows, tiles = self.rows.pop(window, []), self.tiles.pop(window, [])
        slices = [Slice("p", stop, NO_ROWS) for _, stop in rows] + [Slice("p", t.stop, NO_ROWS, t) for t in tiles]
        if slices:
            model, new = self.model, {at for at, _ in rows if not self.model.is_counted(at)}
            seen = Coverage.of(slices)["p"]
            model.commit(new, seen.after(model.span, model.counted, window, {model.of[at] for at in new}))


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_commits_say_of_every_row_whether_it_is_counted_whoever_has_written_them(seed: int) -> None:
    random = Random(seed)
    size = random.randrange(2, 40)
    model = Model([max(0, at // 5 + random.randrange(-3, 4)) for at in range(size)])
    jobs = [Job(model, 0, 0)]
    for _ in range(random.randrange(60)):
        job, chance = random.choice(jobs), random.random()
        if chance < 0.1:
            jobs = [
                *random.sample(jobs, k=random.randrange(len(jobs) + 1)),
                Job(model, model.span.resume, job.watermark),
            ]
        elif chance < 0.15:
            model.run(random.randrange(model.span.resume, size + 1), random.randrange(10))
        elif chance < 0.6:
            job.read(random.randrange(job.at, size + 1))
        else:
            to = job.watermark + random.randrange(3)
            try:
                for window in range(job.watermark, to):
                    job.bring(window)
                job.watermark = to
            except OutOfOrderError:
                # A bounded run has read again, and not as far as the job.
                jobs[jobs.index(job)] = Job(model, model.span.resume, job.watermark)
    for watermark in (0, 20):
        last = Job(model, model.span.resume, watermark)
        last.read(size)
        for window in range(21):
            last.bring(window)
    assert model.rows == set(range(size))
    assert (model.span.stop, model.span.resume, model.span.waiting) == (size, size, {})


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-3, 4), min_size=1, max_size=60), st.integers(0, 1 << 32))
def test_one_job_alone_resumes_at_the_lowest_row_that_waits(offsets: list[int], seed: int) -> None:
    random = Random(seed)
    model = Model([max(0, at // 5 + offset) for at, offset in enumerate(offsets)])
    job = Job(model, 0, 0)
    for window in range(20):
        job.read(random.randrange(job.at, len(offsets) + 1))
        brought = dict(job.rows), {at: [*tiles] for at, tiles in job.tiles.items()}
        job.bring(window)
        job.watermark = window + 1
        waits = [at for at in range(model.span.stop) if at not in model.rows]
        assert model.span.resume == min(waits, default=model.span.stop)
        # What comes again changes nothing, and is not refused.
        before = model.span
        again = Job(model, job.at, window, *brought)
        again.bring(window)
        assert (model.span.stop, model.span.waiting) == (before.stop, before.waiting)


def tile(start: int, stop: int, **changes: object) -> Tile:
    return Tile(**{"start": start, "stop": stop, "size": stop, "open": {}, "letters": (), "skipped": NOBODY} | changes)


def slices(*tiles: Tile) -> list[Slice]:
    return [Slice("p", one.stop, NO_ROWS, one) for one in tiles]


def test_a_hole_between_two_tiles_is_refused() -> None:
    with pytest.raises(OutOfOrderError, match=r"positions \[6, 9\) came after 5"):
        Coverage.of(slices(tile(0, 5), tile(6, 9)))


@pytest.mark.parametrize("one", [slices(tile(6, 9)), [Slice("p", 9, NO_ROWS)]])
def test_what_lies_beyond_the_commits_is_refused(one: list[Slice]) -> None:
    before = SourceSpan(start=0, stop=5, resume=5, size=5)
    with pytest.raises(OutOfOrderError, match="the commits end at 5"):
        Coverage.of(one)["p"].after(before, {}, 0, ())


def test_messages_without_a_value_count_once() -> None:
    before = SourceSpan(start=0, stop=5, resume=3, size=5, skipped=2)
    seen = Coverage.of(slices(tile(3, 8, skipped=np.array([3, 4, 5, 7]))))["p"]
    assert seen.after(before, {}, 0, ()).skipped == 4


def test_letters_stay_listed_while_their_rows_may_be_read_again() -> None:
    before = SourceSpan(
        start=0, stop=9, resume=6, size=9, dead=3, letters={"a": 5, "b": 7}, letter_checksums={"a": "1", "b": "2"}
    )
    file = LetterFile(name="c", size=1, checksum="3", rows=4, partition="p", reasons={})
    span = with_letters(before, [LettersWritten(file, 8)])
    assert (span.dead, span.letters) == (7, {"b": 7, "c": 8})
    assert span.letter_checksums == {"b": "2", "c": "3"}
