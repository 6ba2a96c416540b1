""""""

import gzip
import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weir.contracts import EventClock, Store
from weir.demo.generator import GeneratorConfig, generate
from weir.demo.replay import ReplayConfig, ReplaySummary, nice_window, open_log, replay
from weir.readers import Block, BlockId, Lines, LogColumns, LogConfig, TopicError, Validator

FAST = ReplayConfig(seconds=0.05, segments=40)


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    path.write_bytes(generate(GeneratorConfig(users=50, items=100, events=2000, days=5, malformed=0.01)).lines)
    return path


def placed(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*")))


def test_the_segments_make_up_the_log(tmp_path: Path, log: Path) -> None:
    summary = replay(log, Store(str(tmp_path / "log")), Store(str(tmp_path)), FAST)
    assert placed(tmp_path / "log") == log.read_bytes()
    assert summary.finished
    assert summary.placed_rows == summary.rows == len(log.read_bytes().splitlines())
    assert summary.placed_segments == summary.segments == len(list((tmp_path / "log").glob("*"))) > 30


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=5, deadline=None)
@given(st.integers(1, 30), st.integers(1, 9))
def test_a_killed_replay_goes_on_where_it_was(
    tmp_path_factory: pytest.TempPathFactory, log: Path, first: int, second: int
) -> None:
    path = tmp_path_factory.mktemp("store")
    store, folder = Store(str(path)), Store(str(path / "log"))
    for stop in (first, first + second):

        def report(summary: ReplaySummary, stop: int = stop) -> None:
            if summary.placed_segments >= stop:
                raise KilledError

        with pytest.raises(KilledError):
            replay(log, folder, store, FAST, report=report)
    before = {segment.name: segment.stat().st_mtime_ns for segment in (path / "log").glob("*")}
    # Another pace is allowed; the cuts stay.
    summary = replay(log, folder, store, ReplayConfig(seconds=0.01, segments=40))
    assert placed(path / "log") == log.read_bytes()
    assert summary.finished
    assert {name: (path / "log" / name).stat().st_mtime_ns for name in before} == before


def test_the_clock_says_when_each_event_happened(tmp_path: Path, log: Path) -> None:
    store = Store(str(tmp_path))
    started = time.time()
    replay(log, Store(str(tmp_path / "log")), store, ReplayConfig(seconds=0.5, segments=10))
    clock = EventClock.of(store)
    assert clock.event_end is not None
    assert started - 0.5 < clock.wall_time(round(1000 * clock.event_origin)) < started + 2
    end = clock.wall_time(round(1000 * clock.event_end))
    assert end == pytest.approx(clock.wall_origin + 0.5, abs=0.01)
    segments = sorted((tmp_path / "log").glob("*"))
    # No segment shows before its last event has happened.
    assert segments[-1].stat().st_mtime >= end


def test_a_finished_replay_is_left_as_it_is(tmp_path: Path, log: Path) -> None:
    store, folder = Store(str(tmp_path)), Store(str(tmp_path / "log"))
    replay(log, folder, store, FAST)
    clock = EventClock.of(store)
    assert replay(log, folder, store, FAST).finished
    assert EventClock.of(store) == clock


def test_another_log_or_other_cuts_are_refused(tmp_path: Path, log: Path) -> None:
    store, folder = Store(str(tmp_path)), Store(str(tmp_path / "log"))
    replay(log, folder, store, FAST)
    with pytest.raises(ValueError, match=r"holds a replay of .* 40 slices\), not of .* 41 slices\)"):
        replay(log, folder, store, ReplayConfig(seconds=0.05, segments=41))


def test_parquet_stays_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {"user_id": list(range(1000)), "item_id": [7] * 1000, "timestamp": [956_000_000 + 60 * n for n in range(1000)]}
    )
    path = tmp_path / "log.parquet"
    pq.write_table(table, path)
    replay(path, Store(str(tmp_path / "log")), Store(str(tmp_path)), FAST)
    segments = sorted((tmp_path / "log").glob("*.parquet"))
    assert len(segments) == 40
    assert pa.concat_tables([pq.read_table(segment) for segment in segments]).equals(table)


DAY = 86_400


def lines(*times: object) -> bytes:
    return b"".join(json.dumps({"user_id": "u", "item_id": "i", "timestamp": time}).encode() + b"\n" for time in times)


@given(st.floats(60 * 60, 364 * DAY * 60))
def test_a_log_of_an_hour_or_more_gets_24_to_60_windows(span: float) -> None:
    assert 24 <= span / nice_window(span) <= 60


@pytest.mark.parametrize("factor", [1, 10**3, 10**6])
def test_seconds_milliseconds_and_microseconds_are_recognised_by_size(tmp_path: Path, factor: int) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines(1_700_000_000 * factor, 1_700_000_060 * factor))
    profile = open_log(path).profile
    assert (profile.start_ms, profile.end_ms) == (1_700_000_000_000, 1_700_000_060_000)


def test_times_may_be_rfc_3339(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines("2024-01-01T00:00:00Z", "no time", "2026-13-45T08:00:00Z", "2024-01-01T02:00:00.250+01:00"))
    source = open_log(path)
    assert source.arrival.tolist() == [1_704_067_200_000] * 3 + [1_704_070_800_250]


def test_a_stray_time_neither_stretches_the_span_nor_delays_the_rows_behind_it(tmp_path: Path) -> None:
    steady = list(range(1_700_000_000, 1_700_002_000))
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines(*steady[:1000], 4_000_000_000, *steady[1000:]) + b"{broken\n" + lines(1_700_001_000))
    source = open_log(path)
    assert source.profile.rows == 2003
    assert source.profile.end_ms == 1_700_001_999_000
    assert source.arrival[1000] == source.arrival[999]
    assert source.arrival[-1] == source.arrival[-2] == 1_700_001_999_000
    assert bytes(source.segment(1000, 1001)) == lines(4_000_000_000)


def test_gzip_and_a_missing_last_newline(tmp_path: Path) -> None:
    data = lines(1_700_000_000, 1_700_000_001)[:-1]
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(data))
    source = open_log(path)
    assert source.profile.rows == 2
    # A pipeline that follows the segments waits for the end of a line.
    assert source.segment(0, 1) + source.segment(1, 2) == data + b"\n"


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.tsv"])
def test_each_segment_of_a_csv_has_its_header(tmp_path: Path, name: str) -> None:
    sign = "\t" if ".tsv" in name else ","
    cells = [("user_id", "item_id", "timestamp"), ("u", "i", "1700000000"), ("v", "j", "1700000060")]
    rows = [sign.join(row) for row in cells]
    data = "\n".join(rows).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    source = open_log(tmp_path / name)
    assert (source.profile.rows, source.profile.window_seconds, source.suffix) == (2, 60, name[3:7])
    assert [source.segment(row, row + 1).decode() for row in (0, 1)] == [f"{rows[0]}\n{row}\n" for row in rows[1:]]
    validator = Validator(LogConfig())
    valid, _ = validator.validate(Block(BlockId("log", 0), source.rows(1, 2)))
    assert valid.rows["user_id"].to_pylist() == ["v"]


@pytest.mark.parametrize("name", ["log.csv", "LOG.CSV", "log.Csv.GZ"])
def test_rows_over_lines_stay_whole(tmp_path: Path, name: str) -> None:
    head = b'user_id,item_id,timestamp,"what\nwas said"\n'
    rows = [b'u%d,i,%d,"a\nmallory,evil,1700000000,x\n"\n' % (one, 1_700_000_000 + one) for one in range(3)]
    data = b"".join([head, *rows])[:-1]
    (tmp_path / name).write_bytes(gzip.compress(data) if name.lower().endswith(".gz") else data)
    source = open_log(tmp_path / name)
    assert source.profile.rows == 3
    assert source.suffix == ".csv"
    assert [source.segment(one, one + 1) for one in range(3)] == [head + row for row in rows]
    assert source.segment(1, 3) == head + rows[1] + rows[2]
    raw = source.rows(1, 3)
    assert isinstance(raw, Lines)
    assert raw.lines == [row[:-1] for row in rows[1:]]


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us"), pa.string()])
def test_parquet_columns_of_any_time_type(tmp_path: Path, kind: pa.DataType) -> None:
    moments = pa.array([1_700_000_000_000_000, 1_700_000_060_000_000], pa.int64())
    ids = {"user_id": ["u"] * 2, "item_id": ["i"] * 2}
    text = pa.array(["2023-11-14T22:13:20Z", "2023-11-14T22:14:20Z"])
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({**ids, "when": text if kind == pa.string() else moments.cast(kind)}), path)
    profile = open_log(path, LogConfig(columns=LogColumns(timestamp="when"))).profile
    assert (profile.start_ms, profile.end_ms) == (1_700_000_000_000, 1_700_000_060_000)


def test_a_topic_is_not_replayed() -> None:
    with pytest.raises(
        TopicError, match=r"^kafka://broker:9092/clicks: a Kafka topic is a live log; only a finished file"
    ):
        open_log(Path("kafka://broker:9092/clicks"))


def test_what_is_no_log_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.jsonl: there is no such log"):
        open_log(tmp_path / "missing.jsonl")
    (tmp_path / "log.xlsx").write_text("a,b")
    with pytest.raises(ValueError, match=r"log\.xlsx: unknown format; a log ends in \.parquet, \.jsonl"):
        open_log(tmp_path / "log.xlsx")
    (tmp_path / "log.parquet").write_text("a,b")
    with pytest.raises(ValueError, match=r"log\.parquet: is no Parquet file"):
        open_log(tmp_path / "log.parquet")
    (tmp_path / "empty.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"empty\.jsonl: no row has a valid event time: user_id is missing or null"):
        open_log(tmp_path / "empty.jsonl")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "log.parquet")
    with pytest.raises(ValueError, match=r"no row has a valid event time: column user_id is missing; the file has a: "):
        open_log(tmp_path / "log.parquet")
    (tmp_path / "nothing.jsonl").touch()
    with pytest.raises(ValueError, match=r"nothing\.jsonl: no row has a valid event time$"):
        open_log(tmp_path / "nothing.jsonl")


def test_times_are_read_as_the_pipeline_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines(1_700_000_000, -1, 1_700_000_000_500, "2023-11-14T22:13:21Z", 1_700_000_002_000_000, "soon"))
    source = open_log(path)
    assert (source.arrival - 1_700_000_000_000).tolist() == [0, 0, 500, 1000, 2000, 2000]
    in_ms = open_log(path, LogConfig(timestamp_unit="ms"))
    assert (in_ms.profile.start_ms, in_ms.profile.end_ms) == (1_700_000_000_500, 1_700_000_000_500)
