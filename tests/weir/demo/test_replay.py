import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weir.contracts import EventClock, Store
from weir.demo.generator import GeneratorConfig, generate
from weir.demo.replay import ReplayConfig, ReplaySummary, replay

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
