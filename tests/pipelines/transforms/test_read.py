"""The chain of transforms: however a log is cut, ordered and read again, each event is committed once; dead letters."""

import errno
import os
import re
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.coders.typecoders import registry
from apache_beam.typehints import Tuple
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import CorruptArtefactError, LogState, SourceSpan, Store, checksum
from weir.pipelines.batch.ingest import _Driver
from weir.pipelines.batch.run_once import run_once
from weir.pipelines.config import PipelineConfig
from weir.pipelines.metrics import PipelineMetrics
from weir.pipelines.runs.progress import WHOLE_FILE, LettersWritten, Progress
from weir.pipelines.runs.run import END_OF_TIME, Base, Run
from weir.pipelines.stream.reader import Batch
from weir.pipelines.stream.slices import Slice
from weir.pipelines.transforms.deduplicate import ShardWindow
from weir.pipelines.transforms.read import (
    ElementCoder,
    ListChunks,
    WriteDeadLetters,
    file_name,
    read_dead_letters,
    start_of,
)
from weir.pipelines.transforms.split import Keyed, ShardSlice
from weir.readers import Block, BlockId, Chunk, DeadLetter, Fault, Letters, Lines, Partition, Reading, Reason, discover

FEATURES = {"categorical": ["genre"], "dense": ["price"]}


def with_features(event: Event) -> Event:
    number = len(event.user) + int(event.item[-1]) + event.second
    genres, prices = (None, (), ("jazz",), ("rock", "pop")), (None, 0.5, -2.0)
    return replace(event, genre=genres[number % 4], price=prices[number % 3])


events = st.builds(
    Event,
    user=st.sampled_from(["ann", "bob", "cyd", "Ürsel"]),
    item=st.sampled_from([f"item-{number}" for number in range(6)]),
    second=st.integers(0, 60),
    type=st.sampled_from(["click", "click", "skip", "view"]),
).map(with_features)
identified = events.flatmap(
    # The id tells all about the event, so that whichever copy is kept is the same.
    lambda event: st.just(replace(event, event_id=f"{event.user}/{event.item}/{event.second}/{event.type}"))
)
batches = st.lists(st.one_of(events, identified), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["a.jsonl", "b/c.json"]), batches),
        st.tuples(st.sampled_from(["gzip", "parquet"]), batches),
        st.tuples(st.just("run"), st.booleans()),
        st.tuples(st.just("run"), st.booleans()),
        st.tuples(st.just("restart"), st.booleans()),
        st.tuples(st.just("again"), st.booleans()),
    ),
    min_size=1,
    max_size=9,
)


def driver(store: Store, config: Any) -> _Driver:
    """Start as a process does that knows nothing but the commits."""
    return _Driver(store, config, PipelineMetrics(CollectorRegistry()), None, threading.Event())


def from_zero(store: Store, config: Any, flush: bool) -> None:
    """Run as if no position were known."""
    plan = support.plan_of(store, config, flush=flush, only_whole_lines=True)
    readings = tuple(Reading(partition) for partition in support.discover(config.log))
    partitions = {reading.partition.key: reading.partition for reading in readings}
    base = Base.of(LogState.open(store), partitions)
    refused = {key: positions for key in partitions if len(positions := support.dead_positions(store, key))}
    run = replace(plan.run, base=base, partitions=partitions, refused=refused)
    run_once(store, config, replace(plan, readings=readings, run=run))


def add(log: Path, kind: str, number: int, batch: list[Event]) -> None:
    if kind == "gzip":
        support.write_gzip(log / f"{number:03d}.jsonl.gz", [event.line() for event in batch])
    elif kind == "parquet":
        support.write_parquet(log / f"{number:03d}.parquet", batch)
    else:
        support.write_lines(log / kind, [event.line() for event in batch])


# Another writer commits what this one keeps in hand, and this one has nothing to commit.
@example([("a.jsonl", [with_features(Event("ann", "item-0", 0))]), ("again", True), ("run", False)], 60, 0, "item")
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps, st.sampled_from([60, 200, 10_000]), st.integers(0, 2), st.sampled_from(["item", "user"]))
def test_any_cut_of_a_log_gives_the_events_and_histories_of_the_oracle(
    todo: list[Any], chunk_bytes: int, late_items: int, of: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, written = Path(name), list[Event]()
        (folder / "log").mkdir()
        named = {f"{of}_features": FEATURES}
        config = support.config(folder, chunk_bytes=chunk_bytes, late_items=late_items, **named)
        store = Store(str(folder / "store"))
        process = driver(store, config)
        for number, (kind, value) in enumerate(todo):
            if kind in {"run", "restart"}:
                # A process that goes on has rows in hand; one that starts reads them again.
                process = driver(store, config) if kind == "restart" else process
                process.catch_up(support.discover(config.log), flush=value, only_whole_lines=True)
            elif kind == "again":
                from_zero(store, config, value)
            else:
                add(folder / "log", kind, number, value)
                written += value
        process.catch_up(support.discover(config.log), flush=True, only_whole_lines=False)
        # Where another had been faster, the process has started over and is due once more.
        process.catch_up(support.discover(config.log), flush=True, only_whole_lines=False)
        assert support.stored_events(store) == support.expected_events(written)
        support.check_counts(store)
        (support.check_features if of == "item" else support.check_user_features)(store, written)
        support.check_histories(store, config.history_length, late_items=late_items)
        counts = [manifest.counts for manifest in support.committed(store)]
        assert sum(c.events + c.duplicates + c.ignored for c in counts) == len(written)
        assert all(span.is_done for span in LogState.open(store).sources.values())
        last = len(counts)
        from_zero(store, config, flush=True)
        assert len(support.committed(store)) == last


def test_what_was_heard_of_another_writer_between_runs_is_not_counted_twice(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    config, store = support.config(tmp_path), Store(str(tmp_path / "store"))
    events = [Event("ann", "item-0", 0), Event("ann", "item-1", 1)]
    process = driver(store, config)
    add(tmp_path / "log", "a.jsonl", 0, events[:1])
    process.catch_up(support.discover(config.log), flush=False, only_whole_lines=True)
    from_zero(store, config, flush=True)
    # As where a merge of histories is committed.
    process._state.catch_up(process._commits)
    add(tmp_path / "log", "a.jsonl", 1, events[1:])
    process.catch_up(support.discover(config.log), flush=True, only_whole_lines=True)
    assert support.stored_events(store) == support.expected_events(events)
    support.check_counts(store)


CONFIG = PipelineConfig(chunk_bytes=100, chunk_rows=2)


def listed(folder: Path, **reading: Any) -> tuple[list[Chunk], list[Letters], list[Progress]]:
    [partition] = discover(str(folder))
    chunks, letters, progress = [], [], []
    for element in ListChunks(CONFIG).process(Reading(partition, **reading)):
        value = getattr(element, "value", element)
        {Chunk: chunks, Letters: letters, Progress: progress}[type(value)].append(value)
    return chunks, letters, progress


def test_a_file_that_has_gone_is_told_and_left_to_the_next_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    support.write_lines(tmp_path / "a.jsonl", ["x\n"])
    [partition] = discover(str(tmp_path))
    (tmp_path / "a.jsonl").unlink()
    assert list(ListChunks(CONFIG).process(Reading(partition))) == []
    assert "a.jsonl cannot be read now, the next run tries again: [Errno 2]" in caplog.text


def test_a_file_that_may_not_be_read_is_a_letter_and_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Partition) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.path)

    support.write_lines(tmp_path / "a.jsonl", ["x\n"])
    monkeypatch.setattr(Partition, "open", refuse)
    chunks, [letters], progress = listed(tmp_path)
    assert (chunks, progress, letters.letters[0].reason) == ([], [], "unreadable_file")
    assert "Permission denied" in letters.letters[0].detail


def test_a_damaged_footer_is_a_letter_and_no_progress(tmp_path: Path) -> None:
    support.write_parquet(tmp_path / "a.parquet", [Event("u", "i", 1)])
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[-30:-8] = b"\xff" * 22
    (tmp_path / "a.parquet").write_bytes(data)
    chunks, [letters], progress = listed(tmp_path)
    assert (chunks, progress, letters.letters[0].reason) == ([], [], "unreadable_file")


@pytest.mark.parametrize("kind", [Batch, Block, Keyed, ShardSlice, ShardWindow, Slice])
def test_beam_uses_it_for_all_that_holds_rows(kind: type) -> None:
    assert isinstance(registry.get_coder(kind), ElementCoder)
    assert isinstance(registry.get_coder(Tuple[int, kind]).coders()[1], ElementCoder)


@given(st.lists(st.text(max_size=20), max_size=50))
def test_what_is_encoded_comes_back_and_its_size_is_known_before(ids: list[str]) -> None:
    piece = ShardSlice("a", 10_000, pa.RecordBatch.from_pydict({"item_id": pa.array(ids, pa.string())}))
    encoded = ElementCoder().encode(piece)
    assert ElementCoder().decode(encoded) == piece
    assert 0 <= len(encoded) - piece.nbytes < 1000


def test_a_block_is_as_large_as_its_lines() -> None:
    lines = Lines([b"{}", b"[1]"], np.arange(2))
    assert [Block(BlockId("a", 0), content).nbytes for content in (lines, None)] == [5, 0]


def test_to_say_how_large_an_element_is_does_not_encode_it() -> None:
    """A function cannot be pickled, so encoding would fail."""
    piece = ShardSlice(lambda: None, 0, pa.RecordBatch.from_pydict({"item_id": ["one"]}))  # type: ignore[arg-type]
    assert beam.coders.TupleCoder([beam.coders.VarIntCoder(), ElementCoder()]).estimate_size((1, piece)) > 0
    with pytest.raises(Exception, match="pickle"):
        ElementCoder().encode(piece)


BLOCK = BlockId("eu/[1].jsonl", 4096)


def letter(position: int) -> DeadLetter:
    return DeadLetter.of(BLOCK.partition, position, Fault(Reason.WRONG_TYPE, "a sentence"), b"raw\xff")


def run(refused: list[int] | None = None, name: str = "one") -> Run:
    known = {BLOCK.partition: np.array(refused, np.int64)} if refused else {}
    return Run(name, Base(), {}, 1000, 0, flush=True, refused=known)


def write(store: Store, run: Run, *letters: DeadLetter, block: BlockId = BLOCK) -> list[LettersWritten]:
    return list(WriteDeadLetters(store, run).process(Letters(block, letters)))


def test_letters_are_written_once_by_each_attempt(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    [first] = write(store, run(), letter(1), letter(2))
    [second] = write(store, run(name="two"), letter(2))
    assert read_dead_letters(store, first.file.name) == [letter(1), letter(2)]
    assert read_dead_letters(store, second.file.name) == [letter(2)]
    assert (first.file.rows, first.file.reasons, first.last) == (2, {"wrong_type": 2}, 2)
    assert first.file.checksum == checksum(store.read(first.file.name))
    assert write(store, run()) == []


def test_a_letter_that_a_commit_records_is_not_written_again(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    [found] = write(store, run([1, 3]), letter(1), letter(2), letter(3))
    assert read_dead_letters(store, found.file.name) == [letter(2)]
    assert write(store, run([1]), letter(1)) == []
    whole = BlockId(BLOCK.partition, WHOLE_FILE)
    assert write(store, run([WHOLE_FILE]), letter(0), block=whole) == []
    [found] = write(store, run([0]), letter(0), block=whole)
    assert found.last == END_OF_TIME


def test_a_row_that_was_valid_before_is_refused_unless_it_has_counted(tmp_path: Path) -> None:
    """Positions 10 to 49 are read again; of window 1000 all below 40 is counted, of window 2000 all below 20."""
    span = SourceSpan(start=0, stop=50, resume=10, size=50)
    base = Base(sources={BLOCK.partition: span}, counted={BLOCK.partition: {1000: 40, 2000: 20}})
    again = Run("one", base, {}, 1000, 0, flush=True)
    times = {12: 1500, 15: 2999, 19: 3000, 25: 2000, 30: 1000, 45: 1999, 47: None, 50: None, 60: 1500}
    letters = [msgspec.structs.replace(letter(at), event_ms=time) for at, time in times.items()]
    [found] = write(Store(str(tmp_path)), again, *letters)
    left = read_dead_letters(Store(str(tmp_path)), found.file.name)
    assert [(one.position, one.may_have_counted) for one in left] == [
        *((at, False) for at in (19, 25, 45)),
        (47, True),
        *((at, False) for at in (50, 60)),
    ]


def test_the_file_is_named_by_partition_block_and_attempt() -> None:
    assert re.fullmatch(r"dead-letters/eu/\[1\].jsonl/000000000004096-[0-9a-f]{8}-f0.jsonl", file_name(BLOCK, "f0"))
    assert re.fullmatch(r"dead-letters/a.parquet/file-[0-9a-f]{8}-f0.jsonl", file_name(BlockId("a.parquet", -1), "f0"))
    assert (start_of(file_name(BLOCK, "f0")), start_of(file_name(BlockId("a.parquet", -1), "f0"))) == (4096, 0)


@pytest.mark.parametrize("place", [3, 14, -2])
def test_damaged_letters_are_refused_by_name(tmp_path: Path, place: int) -> None:
    """They say which rows were refused already: a position that reads otherwise would drop or repeat a row."""
    store = Store(str(tmp_path))
    [written] = write(store, run(), letter(1), letter(2))
    data = bytearray(store.read(written.file.name))
    data[place] ^= 1
    store.write(written.file.name, bytes(data))
    with pytest.raises(CorruptArtefactError, match=re.escape(written.file.name)):
        read_dead_letters(store, written.file.name, written.file.checksum)
    store.write(written.file.name, b"not json")
    with pytest.raises(CorruptArtefactError, match=re.escape(written.file.name)):
        read_dead_letters(store, written.file.name)
