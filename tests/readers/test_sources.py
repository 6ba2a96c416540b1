""""""

import errno
import io
import logging
import os
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import EventClock
from weir.readers import (
    LOG_SUFFIXES,
    PAIR_SUFFIXES,
    Format,
    KnownFile,
    LogConfig,
    Partition,
    TopicError,
    discover,
    generation,
    identified,
    latest_event_ms,
    topic_of,
)
from weir.readers.sources import LogFile, printable, same_start

NAMES = ["a.jsonl", "b/c.json", "b/d.jsonl.gz", "e.json.gz", "f.parquet", "h.csv", "i.tsv.gz"]
OTHERS = [".hidden.jsonl", "_tmp/x.jsonl", "b/_x.parquet", "g.jsonl.tmp", "h.xlsx", "README"]


def make(folder: Path) -> None:
    for name in NAMES + OTHERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"12345")


def test_a_folder_is_searched_to_its_depths(tmp_path: Path) -> None:
    make(tmp_path)
    found = discover(str(tmp_path))
    assert [partition.key for partition in found] == NAMES
    gz = Format.GZIP_LINES
    assert [partition.format for partition in found] == [
        *(Format.JSON_LINES, Format.JSON_LINES, gz, gz, Format.PARQUET),
        *(Format.DELIMITED, Format.GZIP_DELIMITED),
    ]
    assert {partition.size for partition in found} == {5}
    with found[1].open() as file:
        assert file.read() == b"12345"


def test_a_file_and_a_pattern(tmp_path: Path) -> None:
    make(tmp_path)
    assert [partition.key for partition in discover(str(tmp_path / "b/c.json"))] == ["c.json"]
    assert [partition.key for partition in discover(str(tmp_path / "*.json*"))] == ["a.jsonl", "e.json.gz"]
    assert [partition.key for partition in discover(str(tmp_path / "**/*.parquet"))] == ["f.parquet"]
    assert [partition.key for partition in discover(str(tmp_path / "b*/*.json"))] == ["b/c.json"]


@pytest.mark.parametrize("suffix", LOG_SUFFIXES | PAIR_SUFFIXES)
@pytest.mark.parametrize("spell", [str.upper, str.title])
def test_the_case_of_an_ending_does_not_count(tmp_path: Path, suffix: str, spell: Callable[[str], str]) -> None:
    suffixes, name = {**LOG_SUFFIXES, **PAIR_SUFFIXES}, f"EXPORT{spell(suffix)}"
    (tmp_path / name).write_text("x")
    (tmp_path / "left out.TMP").write_text("x")
    for log in (tmp_path, tmp_path / name, f"{tmp_path}/*{suffix}", f"{tmp_path}/EX*", f"{tmp_path}/*{spell(suffix)}"):
        [partition] = discover(str(log), suffixes)
        assert (partition.key, partition.format) == (name, suffixes[suffix])


def test_new_files_are_seen_on_an_object_store() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/sources/log/a.jsonl", b"1")
    assert [(p.key, p.size) for p in discover("memory://sources/log")] == [("a.jsonl", 1)]
    fs.pipe_file("/sources/log/a.jsonl", b"12")
    fs.pipe_file("/sources/log/b.jsonl", b"1")
    found = discover("memory://sources/log")
    assert [(partition.key, partition.size) for partition in found] == [("a.jsonl", 2), ("b.jsonl", 1)]
    with found[1].open() as file:
        assert file.read() == b"1"


@pytest.mark.parametrize("name", ["absent", "absent/*.jsonl"])
def test_a_log_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        discover(str(tmp_path / name))


@pytest.mark.parametrize("topic", ["kafka://broker:9092/clicks", "kafka://one:9092,two:9092/some.clicks"])
def test_a_topic_is_known_again_after_it_was_taken_for_a_path(topic: str) -> None:
    assert topic_of(Path(topic)) == topic
    assert topic_of(Path("/kafka:/clicks")) is None
    assert topic_of(Path("kafka/clicks.jsonl")) is None


def test_a_topic_is_refused_with_what_reads_it() -> None:
    with pytest.raises(TopicError, match="kafka://broker:9092/clicks: a Kafka topic cannot be read here") as error:
        discover("kafka://broker:9092/clicks")
    assert "weir ingest" in error.value.explain()[0]


def test_a_file_that_is_no_log_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "events.xlsx").write_bytes(b"ann,blue")
    (tmp_path / "events.ndjson").write_bytes(b"{}")
    for _ in range(2):
        assert [partition.key for partition in discover(str(tmp_path))] == ["events.ndjson"]
    assert [record.getMessage().partition(" is left out")[0] for record in caplog.records] == [
        f"{tmp_path}/events.xlsx"
    ]


STRANGE = ["a::b.jsonl", "memory::x.jsonl", "[1].jsonl", "*.jsonl", "w?t=1.jsonl", "100%25.jsonl", "a#b.jsonl"]
STRANGE += [" a b .jsonl", "two\nlines.jsonl", "~.jsonl", "é\u202e.jsonl", "s3:x.jsonl", "deep::er/[x]/file::y.jsonl"]


def test_no_name_is_taken_for_anything_but_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "log::[of]*?#%"
    for number, name in enumerate(STRANGE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(str(number).encode())
    found = discover(str(folder))
    assert [partition.key for partition in found] == sorted(STRANGE)
    for partition in found:
        with pickle.loads(pickle.dumps(partition)).open() as file:  # noqa: S301
            assert file.read() == str(STRANGE.index(partition.key)).encode()
        assert partition.url.isprintable()
    fs = fsspec.filesystem("memory")
    for name in STRANGE:
        fs.pipe_file(f"/strange/{name}", name.encode())
    for partition in discover("memory://strange"):
        with partition.open() as file:
            assert file.read().decode() == partition.key


def test_a_name_that_is_no_utf8_is_refused_and_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "good.jsonl").write_bytes(b"{}")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff\n.jsonl")).write_bytes(b"{}")
    for _ in range(2):
        assert [partition.key for partition in discover(str(tmp_path))] == ["good.jsonl"]
    [record] = caplog.records
    assert f"{tmp_path}/bad\\udcff\\n.jsonl is left out: its name is not UTF-8" in record.getMessage()


def test_a_link_is_not_read_besides_what_it_points_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "today.jsonl").write_bytes(b"{}")
    (tmp_path / "latest.jsonl").symlink_to("today.jsonl")
    assert [partition.key for partition in discover(str(tmp_path))] == ["today.jsonl"]
    assert "latest.jsonl is left out: it is no regular file" in caplog.text
    [partition] = discover(str(tmp_path / "latest.jsonl"))
    assert (partition.key, partition.size) == ("latest.jsonl", 2)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.jsonl.zst", "decompress it, or compress it with gzip"),
        ("a.csv.BZ2", "decompress it"),
        ("a.zip", "unpack it"),
        ("a.xlsx", "export it as CSV"),
        ("a.avro", "write it as Parquet"),
        ("ratings.dat", "convert it to CSV"),
        ("pairs.txt", "name it by what it holds"),
    ],
)
def test_a_file_that_is_not_read_is_named_with_what_to_do(
    name: str, advice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).write_text("1,2,3")
    assert discover(str(tmp_path)) == []
    assert f"{name} is left out: {advice}" in caplog.text


def test_a_partition_knows_when_it_arrived(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}")
    os.utime(tmp_path / "a.jsonl", (1.5, 1_700_000_000.25))
    assert [partition.arrival_ms for partition in discover(str(tmp_path))] == [1_700_000_000_250]


@pytest.mark.parametrize(
    "told",
    [
        {"LastModified": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)},
        {"last_modified": datetime(2023, 11, 14, 22, 13, 20)},
        {"updated": "2023-11-14T22:13:20.000Z", "created": "1999-01-01T00:00:00Z"},
        {"mtime": 1_700_000_000, "created": 5.0},
        {"created": 1_700_000_000.0},
    ],
    ids=lambda told: next(iter(told)),
)
def test_every_file_system_has_its_own_word_for_the_arrival(told: dict[str, Any], monkeypatch: Any) -> None:
    listed = {"name": "/arrivals/a.jsonl", "size": 1, "type": "file"} | told
    monkeypatch.setattr(MemoryFileSystem, "isfile", lambda *_: False)
    monkeypatch.setattr(MemoryFileSystem, "isdir", lambda *_: True)
    monkeypatch.setattr(MemoryFileSystem, "find", lambda *_, **__: {"/arrivals/a.jsonl": listed})
    [partition] = discover("memory://arrivals")
    assert partition.arrival_ms == 1_700_000_000_000


def test_a_file_system_without_times_is_told_once(monkeypatch: Any, caplog: pytest.LogCaptureFixture) -> None:
    listed = {f"/timeless/{name}.jsonl": {"size": 1, "type": "file"} for name in "ab"}
    monkeypatch.setattr(MemoryFileSystem, "isfile", lambda *_: False)
    monkeypatch.setattr(MemoryFileSystem, "isdir", lambda *_: True)
    monkeypatch.setattr(MemoryFileSystem, "find", lambda *_, **__: listed)
    assert [partition.arrival_ms for partition in discover("memory://timeless")] == [None, None]
    assert len(caplog.records) == 1
    assert "set pipeline.max_time" in caplog.text


def test_names_are_printed_without_control_characters() -> None:
    assert printable("a\x1b[31m\n\udcffé b") == "a\\x1b[31m\\n\\udcffé b"


TEN_MINUTES = 600_000


def partition(arrival_ms: int | None) -> Partition:
    return Partition("a", "a", Format.JSON_LINES, 1, arrival_ms=arrival_ms)


def test_a_live_log_may_be_as_far_ahead_as_the_tolerance_says() -> None:
    arrived = partition(1_700_000_000_500)
    assert latest_event_ms(arrived, EventClock(), LogConfig()) == 1_700_000_001_500 + TEN_MINUTES
    strict = LogConfig(clock_tolerance_minutes=0.5)
    assert latest_event_ms(arrived, EventClock(), strict) == 1_700_000_001_500 + 30_000


def test_a_replay_is_judged_by_its_own_clock() -> None:
    clock = EventClock(event_origin=1000, wall_origin=5000, speed=60, event_end=4600)
    config = LogConfig(clock_tolerance_minutes=0)
    assert latest_event_ms(partition(5_009_000), clock, config) == 1_600_000
    assert latest_event_ms(partition(5_059_000 + 7000), clock, config) == 4_607_000
    # Placed before the replay was stopped and started again: what was placed then is older than its start.
    assert latest_event_ms(partition(4_000_000), clock, config) == 1_000_000


def test_without_an_arrival_there_is_no_bound() -> None:
    assert latest_event_ms(partition(None), EventClock(), LogConfig()) is None


@pytest.mark.parametrize("modified", [1_700_000_000, 1_700_000_000.25])
def test_the_bound_follows_the_file_and_not_the_reader(tmp_path: Path, modified: float) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n")
    os.utime(tmp_path / "a.jsonl", (modified, modified))
    [found] = discover(str(tmp_path))
    assert latest_event_ms(found, EventClock(), LogConfig()) == round(1000 * modified) + 1000 + TEN_MINUTES


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.jsonl.BZ2", "with gzip"),
        ("a.zip", "unpack"),
        ("a.xlsx", "CSV in UTF-8"),
        ("ratings.dat", "convert"),
        ("a.orc", "Parquet"),
    ],
)
def test_a_file_that_is_left_out_is_told_how_to_be_read(
    name: str, advice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert discover(str(tmp_path / name)) == []
    assert advice in caplog.text


def look(folder: Path, content: bytes | None = None, *, at: int = 0) -> Partition:
    if content is not None:
        (folder / "a.jsonl").write_bytes(content)
        os.utime(folder / "a.jsonl", (at, at))
    [partition] = discover(str(folder))
    return partition


def known(*partitions: Partition) -> dict[str, KnownFile]:
    return {one.key: KnownFile(one.size, one.fingerprint, one.arrival_ms) for one in partitions}


def taken(partition: Partition, before: dict[str, KnownFile]) -> Partition:
    found = identified(partition, before)
    assert found is not None
    return found


@given(st.binary(max_size=5000), st.binary(max_size=5000), st.integers(0, 5000))
def test_a_fingerprint_fits_all_that_starts_as_the_file_did(content: bytes, more: bytes, place: int) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/generations/a.jsonl", content)
    [before] = discover("memory://generations/a.jsonl")
    identity = identified(before, {})
    assert identity is not None
    fingerprint = identity.fingerprint
    assert fingerprint.startswith(f"{min(4096, len(content))}:") or not content
    fs.pipe_file("/generations/a.jsonl", content + more)
    [grown] = discover("memory://generations/a.jsonl")
    assert same_start(grown, fingerprint)
    changed = bytearray(content + more)
    if place < len(changed):
        changed[place] ^= 1
        fs.pipe_file("/generations/a.jsonl", bytes(changed))
        assert same_start(grown, fingerprint) == (place >= min(4096, len(content)))
    fs.pipe_file("/generations/a.jsonl", content[:-1])
    [cut] = discover("memory://generations/a.jsonl")
    assert same_start(cut, fingerprint) == (len(content) == 0 or len(content) > 4096)
    assert same_start(cut, "")


def test_a_file_keeps_its_key_as_long_as_it_grows(tmp_path: Path) -> None:
    first = taken(look(tmp_path, b"one\n"), {})
    assert (first.key, first.fingerprint[:2]) == ("a.jsonl", "4:")
    second = taken(look(tmp_path, b"one\ntwo\n", at=1), known(first))
    assert (second.key, second.fingerprint[:2]) == ("a.jsonl", "8:")
    assert taken(look(tmp_path, b"one\ntwo\n", at=2), known(second)) == look(tmp_path).__class__(
        **(vars(second) | {"arrival_ms": 2000})
    )


@pytest.mark.parametrize("content", [b"", b"on", b"two\n", b"two\nthree\n" * 1000])
def test_a_file_that_was_rewritten_is_the_next_generation_and_said(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    before = known(first := taken(look(tmp_path, b"one\n"), {}))
    second = taken(look(tmp_path, content, at=1), before)
    assert (second.key, generation(second.key), second.size) == ("a.jsonl@2", 2, len(content))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "was rewritten under its name" in caplog.text
    assert "as a.jsonl@2" in caplog.text
    # As long as no commit names it, it stays the second; and so it does once one does.
    assert taken(look(tmp_path), before).key == "a.jsonl@2"
    assert taken(look(tmp_path), known(first, second)) == second
    assert taken(look(tmp_path, content + b"more\n", at=2), known(first, second)).key == "a.jsonl@2"
    assert taken(look(tmp_path, b"x", at=3), known(first, second)).key == ("a.jsonl@3" if content else "a.jsonl@2")


def test_what_has_not_changed_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = taken(look(tmp_path, b"one\n"), {})
    requests: list[Any] = []
    monkeypatch.setattr(type(first.fs), "cat_file", lambda *_, **__: requests.append(1) or b"one\n")
    assert taken(look(tmp_path), known(first)) == first
    assert not requests
    os.utime(tmp_path / "a.jsonl", (5, 5))
    assert taken(look(tmp_path), known(first)).key == "a.jsonl"
    assert len(requests) == 1


def test_a_commit_without_a_fingerprint_says_nothing_of_the_start(tmp_path: Path) -> None:
    before = {"a.jsonl": KnownFile(4, "", None)}
    assert taken(look(tmp_path, b"anything\n"), before).key == "a.jsonl"
    assert taken(look(tmp_path, b"an\n"), before).key == "a.jsonl@2"


def test_a_file_that_cannot_be_looked_at_is_left_to_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    partition = look(tmp_path, b"one\n")
    (tmp_path / "a.jsonl").unlink()
    assert identified(partition, {}) is None
    assert "the next look tries again" in caplog.text

    def refuse(*_: object, **__: object) -> bytes:
        raise PermissionError("no")

    monkeypatch.setattr(type(partition.fs), "cat_file", refuse)
    assert identified(partition, {}) == partition


@pytest.mark.parametrize(("key", "number"), [("a.jsonl", 1), ("a.jsonl@2", 2), ("me@2.jsonl", 1), ("a@7/b.jsonl", 1)])
def test_a_key_tells_its_generation(key: str, number: int) -> None:
    assert generation(key) == number


class Failing(io.BytesIO):
    def seek(self, offset: int, whence: int = 0) -> int:
        raise OSError(errno.ESTALE, "Stale file handle")


def test_it_reads_and_closes_what_it_is_given() -> None:
    inner = io.BytesIO(b"abcdef")
    with LogFile(inner) as file:
        assert (file.readable(), file.seekable(), file.closed) == (True, True, False)
        assert (file.seek(2), file.read(2), file.tell(), file.read()) == (2, b"cd", 4, b"ef")
        assert file.failure is None
    assert inner.closed
    assert file.closed


def test_it_remembers_what_its_file_system_raised() -> None:
    file = LogFile(Failing(b"abc"))
    with pytest.raises(OSError, match="Stale") as stale:
        file.seek(1)
    assert file.failure is stale.value
    file = LogFile(io.BytesIO(b"abc"))
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read()
    assert isinstance(file.failure, ValueError)
