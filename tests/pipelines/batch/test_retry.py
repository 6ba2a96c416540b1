"""Refused rows that are read again: each counts once, however often that is tried or killed."""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

import weir.pipelines.batch.retry as retry_module
from tests.campaigns.hunter import size_of
from tests.kills import KilledError, killed_at
from tests.pipelines import aging, redacting, support
from tests.pipelines.support import ORIGIN, Event
from tests.pipelines.transforms.test_read import driver
from tests.readers.files import write_delimited
from weir.contracts import CommitLog, CorruptArtefactError, LetterFile, LogState, SourceSpan, Store, UserError
from weir.pipelines.batch.cut_over import cut_over
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.batch.rebuild import prepare
from weir.pipelines.batch.retry import RetrySummary
from weir.pipelines.batch.retry import retry as run_retry
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.run_registry import BusyStoreError, append, only_driver
from weir.pipelines.sources.source import MovedStoreError
from weir.pipelines.store_settings import LayoutError
from weir.pipelines.transforms.read import file_name, read_dead_letters
from weir.readers import BlockId, DeadLetter, Fault, Reason, discover

WRONG: list[dict[str, Any]] = [
    {"max_time": f"{2023}-11-14T22:13:40Z"},
    {"missing_ids": ["item-1", "item-2"]},
    {"event_types": {"click": "positive"}},
    {"max_weight": 0.5},
    {"clock_tolerance_minutes": 0},
    {"columns": {"timestamp": "when"}},
]
"""Settings under which rows are refused that are valid: the files of the log are as old as second 10 of its events."""

FORMATS = ["jsonl", "jsonl.gz", "csv", "tsv.gz", "parquet"]

events = st.builds(
    Event,
    user=st.sampled_from(["ann", "bob", "cyd", "Ürsel"]),
    item=st.sampled_from([f"item-{number}" for number in range(5)]),
    second=st.integers(0, 60),
    type=st.sampled_from(["click", "click", "skip", "view"]),
)
identified = events.map(lambda one: replace(one, event_id=f"{one.user}/{one.item}/{one.second}/{one.type}"))
batches = st.lists(st.one_of(events, identified), min_size=1, max_size=12)


def write(folder: Path, name: str, batch: list[Event]) -> None:
    """Add a file to the log; rows are spelled so that all columns have their names."""
    path = folder / "log" / name
    if name.endswith(".parquet"):
        support.write_parquet(path, batch)
    elif ".jsonl" in name:
        (support.write_gzip if name.endswith(".gz") else support.write_lines)(path, [one.line() for one in batch])
    else:
        write_delimited(path, batch)
    os.utime(path, (ORIGIN + 10, ORIGIN + 10))


def store_of(folder: Path) -> Store:
    return Store(str(folder / "store"))


def under(store: Store, config: PipelineConfig) -> None:
    """Change the settings of a store; where rows wait that would move, those are committed first."""
    if LogState.open(store).number < 0:
        return
    try:
        support.change_settings(store, config)
    except LayoutError:
        ingest(store, PipelineConfig(log=config.log, metrics_port=0), registry=CollectorRegistry())
        support.change_settings(store, config)


def retry(store: Store, config: PipelineConfig, reasons: Sequence[str] = (), *, dry_run: bool = False) -> RetrySummary:
    """Change the settings of a store as an operator does, and read what was refused again."""
    under(store, config)
    return run_retry(store, config, reasons, dry_run=dry_run)


def bring_in(folder: Path, **changes: Any) -> PipelineConfig:
    config = support.config(folder, **{"clock_tolerance_minutes": 5} | changes)
    under(store_of(folder), config)
    ingest(store_of(folder), config, registry=CollectorRegistry())
    return config


def letters_left(store: Store) -> Counter[str]:
    """How many rows by reason have a letter that no retry has read; by the names that commits give to files."""
    read = {key for key, span in LogState.open(store).sources.items() if span.is_done}
    log, found = CommitLog(store), Counter[str]()
    for number in range(log.newest() + 1):
        for file in log.get(number).letters:
            for line, letter in enumerate(read_dead_letters(store, file.name), start=1):
                key = f"{file.name}#{letter.reason}" + (f":{line}" if letter.stands_for else "")
                found[letter.reason] += 0 if key in read else max(1, letter.stands_for)
    return +found


@settings(max_examples=size_of(6, 200), deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(
    first=batches,
    parts=st.lists(st.tuples(st.sampled_from(FORMATS), batches, st.sampled_from(WRONG)), min_size=1, max_size=3),
    tries=st.lists(st.tuples(st.sampled_from([{}, *WRONG]), st.integers(0, 40)), max_size=3),
    run_bytes=st.sampled_from([300, 1 << 30]),
)
def test_rows_refused_under_wrong_settings_count_once_under_the_right_ones(
    first: list[Event],
    parts: list[tuple[str, list[Event], dict[str, Any]]],
    tries: list[tuple[dict[str, Any], int]],
    run_bytes: int,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, written = Path(name), list(first)
        write(folder, "first.jsonl", first)
        bring_in(folder)
        for number, (kind, batch, wrong) in enumerate(parts):
            write(folder, f"part-{number}.{kind}", batch)
            written += batch
            bring_in(folder, **wrong)
        right, store = support.config(folder, run_bytes=run_bytes, clock_tolerance_minutes=5), store_of(folder)
        for wrong, change in tries:
            open_letters = letters_left(store).total()
            # Beam wraps what a transform raises.
            with suppress(KilledError, RuntimeError), killed_at(change):
                retry(store, support.config(folder, **{"run_bytes": run_bytes} | wrong))
            if all(span.is_done for span in LogState.open(store).sources.values()):
                assert letters_left(store).total() <= open_letters
        last = retry(store, right)
        assert aging.leftovers(store) == []
        assert (last.left, last.refused) == ({}, {})
        support.check_counts(store)
        if len({(one.user, one.item, one.second) for one in written}) == len(written):
            # The oracle takes equal events for one.
            support.check_histories(store, right.history_length)
        assert support.stored_events(store) == support.expected_events(written)
        counts = [manifest.counts for manifest in support.committed(store)]
        assert sum(c.events + c.duplicates + c.ignored for c in counts) == len(written)
        before = LogState.open(store).number
        again = retry(store, right)
        assert (again.letters, again.valid) == (0, 0)
        assert LogState.open(store).number == before
        assert all(span.is_done for span in LogState.open(store).sources.values())
        # The log itself has nothing more to say.
        bring_in(folder)
        assert LogState.open(store).number == before


def refuse(folder: Path, *, count: int = 8, name: str = "part.jsonl") -> tuple[Store, list[Event]]:
    """Return a store with two committed events, and as many of these as were refused: all of a file's."""
    write(folder, "first.jsonl", [Event("ann", "item-0", 1), Event("bob", "item-1", 2)])
    bring_in(folder)
    batch = [Event(["ann", "bob"][number % 2], f"item-{number % 5}", 3 * number + 5) for number in range(count)]
    write(folder, name, batch)
    bring_in(folder, max_weight=0.5)
    return store_of(folder), batch


def committed(store: Store) -> int:
    return sum(window.total() for window in support.stored_events(store).values())


def test_a_forgotten_user_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether users are forgotten before a retry, or after it has found out what to read."""
    store, _ = refuse(tmp_path)
    redacting.forget(tmp_path, ["ann"])
    found, listed = retry_module.LetterSource.readings, Counter[str]()

    def forgetting(self: Any, *given: Any) -> Any:
        readings = found(self, *given)
        listed["runs"] += 1
        if listed["runs"] == 1:
            redacting.forget(tmp_path, ["bob"])
            redacting.erase(tmp_path)
        return readings

    monkeypatch.setattr(retry_module.LetterSource, "readings", forgetting)
    monkeypatch.setattr(retry_module, "ReadLetters", _ReadsWhatIsThere)
    first = retry(store, support.config(tmp_path))
    assert (first.letters, first.valid) == (8, 4)
    assert committed(store) == 0
    again = retry(store, support.config(tmp_path))
    assert (again.left, again.valid) == ({"forgotten": 8}, 0)
    assert redacting.sighted(tmp_path, ["ann", "bob"]) == []
    assert aging.leftovers(store) == []


class _ReadsWhatIsThere(retry_module.ReadLetters):
    """Reads letters before their file goes, as a started run does."""

    def process(self, element: Any) -> Any:
        with suppress(CorruptArtefactError):
            yield from super().process(element)


def test_letters_without_their_row_stay_and_are_named(tmp_path: Path) -> None:
    store, _ = refuse(tmp_path, count=2, name="part.csv")
    long = Event("ann", "item-1", 90).line()[:-2] + f', "note": "{"x" * 1100}"}}\n'
    support.write_lines(tmp_path / "log/long.jsonl", [long])
    (tmp_path / "log/broken.parquet").write_bytes(b"PAR1 and nothing")
    bring_in(tmp_path, max_weight=0.5)
    write(tmp_path, "other.csv", [Event("ann", "item-3", 7), Event("bob", "item-4", 9)])
    bring_in(tmp_path, columns={"user_id": "customer"})
    saved = {name: (tmp_path / "log" / name).read_bytes() for name in ("part.csv", "other.csv")}
    for name in saved:
        (tmp_path / "log" / name).unlink()
    under(store, support.config(tmp_path))
    before = LogState.open(store).number
    found = retry(store, support.config(tmp_path))
    assert found.left == {"cut": 1, "without_row": 1, "file_gone": 3}
    assert set(found.first_left) == set(found.left)
    assert found.first_left["cut"] == "long.jsonl, position 0"
    assert LogState.open(store).number == before
    # With their files the columns have their names again.
    for name, data in saved.items():
        (tmp_path / "log" / name).write_bytes(data)
    assert retry(store, support.config(tmp_path)).events == 4


@pytest.mark.parametrize("name", ["part.parquet", "part.tsv"])
def test_rows_that_only_the_log_has_are_not_read_once_users_are_forgotten(tmp_path: Path, name: str) -> None:
    """Their letters do not name the users: under the settings of then, the column was not read."""
    store, _ = refuse(tmp_path, count=1)
    write(tmp_path, name, [Event("ann", "item-3", 7), Event("bob", "item-4", 9)])
    bring_in(tmp_path, columns={"user_id": "customer"})
    redacting.forget(tmp_path, ["ann"])
    redacting.erase(tmp_path)
    found = retry(store, support.config(tmp_path))
    assert (found.events, set(found.left)) == (0, {"before_erasure", "forgotten"})
    assert redacting.sighted(tmp_path, ["ann"]) == []


def test_only_letters_of_the_reasons_asked_for_are_read(tmp_path: Path) -> None:
    store, batch = refuse(tmp_path, count=4)
    write(tmp_path, "ahead.jsonl", [Event("cyd", "item-3", 600)])
    bring_in(tmp_path, clock_tolerance_minutes=0)
    assert letters_left(store) == {"weight_too_large": 4, "ahead_of_arrival": 1}
    shown = retry(store, support.config(tmp_path), ["ahead_of_arrival"], dry_run=True)
    assert (shown.letters, shown.valid, shown.events) == (1, 1, 0)
    assert letters_left(store).total() == 5
    assert retry(store, support.config(tmp_path), ["ahead_of_arrival"]).events == 1
    assert letters_left(store) == {"weight_too_large": 4}
    assert retry(store, support.config(tmp_path)).events == len(batch)


def test_rows_refused_again_stay_until_one_of_them_is_valid(tmp_path: Path) -> None:
    """Then the letter before is read, and the one after it is what a retry reads next."""
    store, batch = refuse(tmp_path, count=6)
    config = support.config(tmp_path)
    still = config.model_copy(update={"max_weight": 0.7})
    under(store, still)
    number = LogState.open(store).number
    for _ in range(2):
        assert retry(store, still).refused == {"weight_too_large": 6}
        assert LogState.open(store).number == number
    some = config.model_copy(update={"missing_ids": ("item-1", "item-2")})
    wrong = sum(event.item in {"item-1", "item-2"} for event in batch)
    found = retry(store, some)
    assert (found.events, found.refused) == (6 - wrong, {"missing_id": wrong})
    assert letters_left(store) == {"missing_id": wrong}
    assert retry(store, some).refused == {"missing_id": wrong}
    assert retry(store, config).events == wrong
    assert letters_left(store) == {}
    assert committed(store) == 2 + len(batch)


def test_messages_of_a_topic_are_read_again(tmp_path: Path) -> None:
    store, _ = refuse(tmp_path, count=1)
    state, key = LogState.open(store), "kafka/cluster/clicks/topic/3"
    row = Event("cyd", "item-4", 40).line().strip().encode()
    letters = [
        DeadLetter.of(key, 70, Fault(Reason.AHEAD_OF_ARRIVAL, "too new"), row),
        DeadLetter.of(key, 71, Fault(Reason.MALFORMED_AVRO, "no zero"), row),
    ]
    name = file_name(BlockId(key, 70), "run")
    entry = store.write(name, msgspec.json.Encoder().encode_lines(letters), rows=2)
    reasons = {letter.reason: 1 for letter in letters}
    file = LetterFile(**entry.model_dump() | {"name": name, "partition": key, "reasons": reasons})
    append(CommitLog(store), state, letters=(file,), sources={key: SourceSpan(start=0, stop=72, resume=72, size=72)})
    found = retry(store, support.config(tmp_path, log="kafka://nowhere:9092/clicks"))
    assert (found.events, found.left) == (2, {"without_row": 1})


@pytest.mark.parametrize("from_log", [False, True])
def test_a_store_with_letters_read_again_moves(tmp_path: Path, *, from_log: bool) -> None:
    store, batch = refuse(tmp_path)
    retry(store, support.config(tmp_path))
    other = Store(str(tmp_path / "other"))
    config = prepare(store, other, support.config(tmp_path, user_shards=3))
    cut_over(store, other, config, from_log=from_log)
    ingest(other, config, registry=CollectorRegistry())
    assert committed(other) == 2 + len(batch)
    assert retry(other, config).letters == 0
    with pytest.raises(MovedStoreError):
        retry(store, support.config(tmp_path))


def test_what_was_read_again_retires_with_its_letters(tmp_path: Path) -> None:
    store, _ = refuse(tmp_path)
    retry(store, support.config(tmp_path))
    write(tmp_path, "later.jsonl", [Event("ann", "item-0", 100_000)])
    bring_in(tmp_path, clock_tolerance_minutes=10_000)
    aging.retire_and_remove(tmp_path)
    assert set(LogState.open(store).sources) == {"first.jsonl", "part.jsonl", "later.jsonl"}
    assert aging.leftovers(store) == []
    assert retry(store, support.config(tmp_path)).letters == 0


def test_retention_beside_a_retry_forgets_no_file_of_the_log(tmp_path: Path) -> None:
    store, _ = refuse(tmp_path)
    write(tmp_path, "later.jsonl", [Event("ann", "item-0", 100_000)])
    bring_in(tmp_path, clock_tolerance_minutes=10_000)
    retry(store, support.config(tmp_path, retention_days=1))
    state = LogState.open(store)
    assert state.horizon is not None
    assert {"first.jsonl", "part.jsonl", "later.jsonl"} <= set(state.sources)


def test_a_store_that_another_pipeline_drives_or_without_commits_is_refused(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    with pytest.raises(UserError, match="no commit"):
        retry(store, support.config(tmp_path))
    assert not store.exists("")
    refuse(tmp_path)
    with only_driver(store), pytest.raises(BusyStoreError):
        retry(store, support.config(tmp_path))


def test_what_was_begun_waits_for_its_file(tmp_path: Path) -> None:
    """Rows of windows that were still open when a retry was killed are not given up with their file."""
    store, batch = refuse(tmp_path, count=12, name="part.csv")
    config = support.config(tmp_path, run_bytes=1)
    for change in range(12, 200, 3):
        begun = Store(str(tmp_path / f"killed-{change}"))
        shutil.copytree(store.url, begun.url)
        with suppress(KilledError, RuntimeError), killed_at(change):
            retry(begun, config)
        if not all(span.is_done for span in LogState.open(begun).sources.values()):
            break
    store = begun
    assert 2 < committed(store) < 2 + len(batch)
    data = (tmp_path / "log/part.csv").read_bytes()
    (tmp_path / "log/part.csv").unlink()
    number = LogState.open(store).number
    assert set(retry(store, config).left) == {"file_gone"}
    assert LogState.open(store).number == number
    (tmp_path / "log/part.csv").write_bytes(data)
    retry(store, config)
    assert committed(store) == 2 + len(batch)


@pytest.mark.parametrize(
    ("wrong", "lost"), [({"max_weight": 0.5}, {}), ({"columns": {"user_id": "who"}}, {"may_have_counted": 60})]
)
def test_what_has_counted_stays_so_under_settings_that_refuse_it(
    tmp_path: Path, wrong: dict[str, Any], lost: dict[str, int]
) -> None:
    """Some rows have counted and some wait: all are read again under wrong settings, then under the right ones."""
    store, right = store_of(tmp_path), support.config(tmp_path)
    # Oldest rows last: all of the file is read again.
    written = [Event("ann", f"item-{second}", second) for second in [*range(59, -1, -1)]]
    write(tmp_path, "a.jsonl", written)
    process = driver(store, right.model_copy(update={"clock_tolerance_minutes": 5}))
    process.catch_up(discover(right.log), flush=False, only_whole_lines=True)
    counted = committed(store)
    assert 0 < counted < len(written)
    bring_in(tmp_path, **wrong)
    assert committed(store) == counted
    found = retry(store, support.config(tmp_path, clock_tolerance_minutes=5))
    assert found.left == lost
    assert committed(store) == counted + found.events
    if not lost:
        assert support.stored_events(store) == support.expected_events(written)
