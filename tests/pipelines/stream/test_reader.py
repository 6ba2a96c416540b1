""""""

import pickle
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from secrets import token_hex

import numpy as np
import pyarrow as pa
import pytest
from apache_beam import coders
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.contracts import EventClock, SourceSpan
from weir.contracts.commits.commit import LetterFile
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.progress import LettersWritten
from weir.pipelines.sources.kafka.client import KafkaPartition
from weir.pipelines.stream.consumers import UNASKED_SECONDS, Silence
from weir.pipelines.stream.reader import Mark, MarkCoder, PartitionSource, Reading
from weir.pipelines.stream.slices import Coverage, MissingRowsError, OutOfOrderError, Slice, Tile, with_letters

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, INT64)
def test_a_mark_survives_its_coder(start: int, watermark_ms: int) -> None:
    encoded = MarkCoder().encode(Mark(start, watermark_ms))
    assert encoded == start.to_bytes(8, "big", signed=True) + watermark_ms.to_bytes(8, "big", signed=True)
    assert MarkCoder().decode(encoded) == Mark(start, watermark_ms)


CONFIGS = st.sampled_from(
    [
        {},
        {"kafka": {"start": "2026-03-01T00:00:00Z", "options": {"fetch.min.bytes": 3, "client.rack": "a"}}},
        {"event_types": {"play": "positive", "skip": "negative"}, "item_features": {"dense": ["price"]}},
        {"user_features": {"categorical": ["lives"], "dense": ["age"]}},
        {"sketch": {"kind": "exact"}, "retention_days": 12.5, "min_time": "2001-01-01"},
    ]
)


@given(CONFIGS, st.integers(0), st.integers(0), st.floats(0.1, 10))
def test_a_source_is_the_same_bytes_wherever_it_has_been(
    settings: dict[str, object], start: int, watermark_ms: int, speed: float
) -> None:
    reading = Reading(
        job="j",
        partition=KafkaPartition("kafka/c/topic/id/3", "topic", 3, 0, 9, "id"),
        start=start,
        watermark_ms=watermark_ms,
        config=PipelineConfig.model_validate(settings),
        clock=EventClock(speed=speed),
        batch_messages=100,
    )
    source = PartitionSource(reading)
    once = pickle.loads(pickle.dumps(source))  # noqa: S301 - its own
    assert once.reading == reading
    assert pickle.dumps(once) == pickle.dumps(source)
    coder = coders.registry.get_coder(PartitionSource)
    assert coder.encode(coder.decode(coder.encode(source))) == coder.encode(source)


ASKED = st.lists(st.tuples(st.floats(0, 12), st.sampled_from(["answered", "broken"])), max_size=60)


@given(st.floats(0, 10), ASKED)
def test_silence_is_what_answers_in_an_unbroken_series_say(idle: float, steps: list[tuple[float, str]]) -> None:
    silence, now = Silence(idle), 1000.0
    series: list[float] = []
    for pause, what in steps:
        now += pause
        if what == "broken":
            silence.broken()
            series = []
            continue
        # An outage that is longer than what counts as idle starts it again.
        if series and now - series[-1] > max(idle, UNASKED_SECONDS):
            series = []
        series.append(now)
        assert silence.answered(now) == (series[-1] - series[0] >= idle)


def test_an_answer_from_before_an_outage_proves_nothing_of_it() -> None:
    silence = Silence(10)
    assert not silence.answered(0)
    # Asked at 5; the broker was away from then on, and its answer came at 65.
    assert not silence.answered(5)
    assert not silence.answered(65), "what producers have kept meanwhile may be on its way"
    assert [silence.answered(at) for at in (68, 71, 74, 75)] == [False, False, False, True]


def test_a_clock_that_is_set_back_proves_nothing() -> None:
    silence = Silence(10)
    assert not silence.answered(100)
    assert not silence.answered(50)
    assert not silence.answered(59)
    assert silence.answered(60)


NOBODY = np.empty(0, np.int64)


def at_positions(positions: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"position": pa.array(positions, pa.int64())})


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
            assert any(low <= at <= high for high, low in span.open.get(self.of[at], {}).items()) or at >= span.listed
        assert span.resume <= min(waits, default=span.stop)

    def run(self, stop: int, closed: int) -> None:
        """Commit the windows up to `closed` as a bounded run does, which says nothing of the others."""
        new = {at for at in range(self.span.resume, stop) if self.of[at] <= closed and not self.is_counted(at)}
        waits = (at for at in range(self.span.resume, stop) if self.of[at] > closed)
        self.commit(new, SourceSpan(start=self.span.resume, stop=stop, resume=min(waits, default=stop), size=stop))


@dataclass
class Job:
    """What one job has read and not brought, by the window that it comes with; its engine may lose slices."""

    model: Model
    at: int
    watermark: int
    slices: dict[int, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    loses: Random | None = None
    name: str = field(default_factory=lambda: token_hex(4))

    def read(self, stop: int) -> None:
        home, of = self.watermark, self.model.of
        parts = defaultdict[int, list[int]](list, {home: []})
        for at in range(self.at, stop):
            parts[max(of[at], home)].append(at)
        later = {at: (part[0], part[-1]) for at, part in parts.items() if at > home}
        tile = Tile(self.at, stop, stop, later, (), NOBODY)
        for window, part in parts.items():
            self.slices[window].append(
                Slice("p", self.name, stop, at_positions(part), tile if window == home else None)
            )
        self.at = stop

    def bring(self, window: int) -> None:
        slices = self.slices.pop(window, [])
        if self.loses and slices and self.loses.random() < 0.2:
            slices.pop(self.loses.randrange(len(slices)))
        if slices:
            model, seen = self.model, Coverage.of(slices)["p"]
            new = {at for at in seen.came.tolist() if not model.is_counted(at)}
            model.commit(new, seen.after(model.span, model.counted, window, {model.of[at] for at in new}))


@pytest.mark.parametrize("loses", [False, True])
@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_the_commits_say_of_every_row_whether_it_is_counted_whoever_has_written_them(seed: int, loses: bool) -> None:
    random = Random(seed)
    lossy = random if loses else None
    size = random.randrange(2, 40)
    model = Model([max(0, at // 5 + random.randrange(-3, 4)) for at in range(size)])
    jobs = [Job(model, 0, 0, loses=lossy)]
    for _ in range(random.randrange(60)):
        job, chance = random.choice(jobs), random.random()
        if chance < 0.1:
            jobs = [
                *random.sample(jobs, k=random.randrange(len(jobs) + 1)),
                Job(model, model.span.resume, job.watermark, loses=lossy),
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
            except (OutOfOrderError, MissingRowsError):
                # A bounded run has read again, and not as far as the job; or the engine has lost something.
                jobs[jobs.index(job)] = Job(model, model.span.resume, job.watermark, loses=lossy)
    for watermark in (0, 20):
        last = Job(model, model.span.resume, watermark)
        last.read(size)
        for window in range(21):
            last.bring(window)
    assert model.rows == set(range(size))
    assert (model.span.stop, model.span.resume, model.span.open, model.span.unlisted) == (size, size, {}, None)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-3, 4), min_size=1, max_size=60), st.integers(0, 1 << 32))
def test_one_job_alone_resumes_at_the_lowest_row_that_waits(offsets: list[int], seed: int) -> None:
    random = Random(seed)
    model = Model([max(0, at // 5 + offset) for at, offset in enumerate(offsets)])
    job = Job(model, 0, 0)
    for window in range(20):
        job.read(random.randrange(job.at, len(offsets) + 1))
        brought = {at: [*slices] for at, slices in job.slices.items()}
        job.bring(window)
        job.watermark = window + 1
        waits = [at for at in range(model.span.stop) if at not in model.rows]
        assert model.span.resume == min(waits, default=model.span.stop)
        # What comes again changes nothing, and is not refused.
        before = model.span
        again = Job(model, job.at, window, brought, name=job.name)
        again.bring(window)
        assert (model.span.stop, model.span.open, model.span.unlisted) == (before.stop, before.open, before.unlisted)


def tile(start: int, stop: int, **changes: object) -> Tile:
    fields = {"start": start, "stop": stop, "size": stop, "open": {}, "letters": (), "skipped": NOBODY}
    return Tile(**fields | changes)


def slices(*tiles: Tile, job: str = "j") -> list[Slice]:
    return [Slice("p", job, one.stop, at_positions([]), one) for one in tiles]


def test_a_hole_between_two_tiles_is_refused() -> None:
    with pytest.raises(OutOfOrderError, match=r"positions \[6, 9\) came after 5"):
        Coverage.of(slices(tile(0, 5), tile(6, 9)))


def test_a_slice_of_a_batch_that_no_commit_has_is_refused() -> None:
    before = SourceSpan(start=0, stop=5, resume=5, size=5, job="j", reached=5)
    with pytest.raises(OutOfOrderError, match="positions 5 to 9 came, 5 is next"):
        Coverage.of([Slice("p", "j", 9, at_positions([]))])["p"].after(before, {}, 0, ())


@pytest.mark.parametrize(("job", "start"), [("j", 6), ("other", 4)])
def test_a_job_goes_on_where_it_was_and_another_one_where_rows_wait(job: str, start: int) -> None:
    before = SourceSpan(start=0, stop=7, resume=3, size=7, job="j", reached=5)
    assert Coverage.of(slices(tile(start - 1, 9), job=job))["p"].after(before, {}, 0, ()).stop == 9
    with pytest.raises(OutOfOrderError, match=f"positions {start} to 9 came, {start - 1} is next"):
        Coverage.of(slices(tile(start, 9), job=job))["p"].after(before, {}, 0, ())


def test_a_row_that_was_announced_has_to_come_with_its_window() -> None:
    before = SourceSpan(start=0, stop=9, resume=3, size=9, job="j", reached=9, open={10: {4: 3, 7: 7}, 20: {8: 8}})
    came = [Slice("p", "j", 5, at_positions([3, 4])), *slices(tile(9, 12))]
    with pytest.raises(MissingRowsError, match="the row at 7 did not come"):
        Coverage.of(came)["p"].after(before, {}, 10, {10})
    came.append(Slice("p", "j", 9, at_positions([7])))
    found = Coverage.of(came)["p"].after(before, {}, 10, {10})
    assert (found.stop, found.resume, found.open) == (12, 8, {20: {8: 8}})
    # What another job has counted does not come again.
    assert Coverage.of(came[:2])["p"].after(before, {10: 8}, 10, {10}).open == {20: {8: 8}}


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
