import os
from pathlib import Path

import pytest

from tests.pipelines import support
from tests.pipelines.support import ORIGIN, Event
from weir.contracts import CorruptArtefactError, EventClock, LogState, Store
from weir.pipelines.batch.run_once import run_once
from weir.pipelines.sources.plan import InHand, make_plan
from weir.pipelines.transforms.commit import RunOutcome
from weir.pipelines.transforms.read import read_dead_letters
from weir.readers import discover


def lines(*seconds: int) -> list[str]:
    return [Event("u", "i", second).line() for second in seconds]


def test_only_what_is_new_has_grown_or_is_open_is_read(tmp_path: Path) -> None:
    config, store = support.config(tmp_path), Store(str(tmp_path / "store"))
    log = tmp_path / "log"
    support.write_lines(log / "done.jsonl", lines(1, 2))
    support.write_lines(log / "grown.jsonl", lines(1))
    support.write_lines(log / "open.jsonl", lines(2, 3, 41, 42))
    support.run(store, config, flush=False)
    assert [reading.start for reading in support.plan_of(store, config).readings] == [lines_before_open()]
    support.write_lines(log / "grown.jsonl", lines(4))
    support.write_lines(log / "new.jsonl", lines(5))
    plan = support.plan_of(store, config)
    length = len(lines(1)[0])
    starts = {reading.partition.key: reading.start for reading in plan.readings}
    assert starts == {"grown.jsonl": length, "new.jsonl": 0, "open.jsonl": lines_before_open()}
    closed = {1000 * support.ORIGIN: sum(map(len, lines(2, 3, 41, 42)))}
    assert plan.run.base.counted == {"grown.jsonl": {}, "open.jsonl": closed}


def lines_before_open() -> int:
    return sum(map(len, lines(2, 3)))


def test_rows_in_hand_are_not_read_again_and_a_restart_reads_them(tmp_path: Path) -> None:
    config, store = support.config(tmp_path), Store(str(tmp_path / "store"))
    path = tmp_path / "log/a.jsonl"
    support.write_lines(path, lines(1, 2, 28))
    plan = support.plan_of(store, config, flush=False)
    run_once(store, config, plan)
    in_hand, size = InHand(), path.stat().st_size
    in_hand.take_in(RunOutcome.of(store, plan.run))
    assert in_hand.reached == {"a.jsonl": size}
    [kept] = in_hand.open_rows
    assert (kept.start_ms, kept.lowest) == (1000 * (support.ORIGIN + 20), sum(map(len, lines(1, 2))))
    support.write_lines(path, lines(29))
    arguments = (store, config, discover(config.log), LogState.open(store))
    [reading] = make_plan(*arguments, in_hand, secret="", flush=False, only_whole_lines=True).readings
    assert reading.start == size
    [reading] = make_plan(*arguments, InHand(), secret="", flush=False, only_whole_lines=True).readings
    assert reading.start == kept.lowest


def test_a_letter_that_is_lost_or_altered_is_named(tmp_path: Path) -> None:
    config, store = support.config(tmp_path), Store(str(tmp_path / "store"))
    support.write_lines(tmp_path / "log/a.jsonl", [*lines(1), *lines(28), "bad\n"])
    support.run(store, config, flush=False)
    [name] = store.glob("dead-letters/*/*")
    [reading] = support.plan_of(store, config).readings
    assert reading.start > 0
    # A refused position that reads otherwise would count a row twice, or drop one that is valid.
    store.write(name, store.read(name).replace(b'"position":', b'"position":1'))
    with pytest.raises(CorruptArtefactError, match="dead-letters/a"):
        support.plan_of(store, config)
    store.remove(name)
    with pytest.raises(CorruptArtefactError, match="dead-letters/a"):
        support.plan_of(store, config)


@pytest.mark.parametrize("is_replay", [False, True])
def test_one_clock_that_runs_ahead_closes_no_window(tmp_path: Path, *, is_replay: bool) -> None:
    store, config = Store(str(tmp_path / "store")), support.config(tmp_path)
    arrived = 5000.0 if is_replay else ORIGIN + 30.0
    if is_replay:
        EventClock(event_origin=ORIGIN + 30, wall_origin=5000, speed=60).save(store)
    seconds = [1, 12, 23, 23 + 23 * 3600, 29]
    support.write_lines(tmp_path / "log/a.jsonl", [Event("u", "i", second).line() for second in seconds])
    os.utime(tmp_path / "log/a.jsonl", (arrived, arrived))
    support.run(store, config, flush=False)
    assert [manifest.start_ms // 1000 - ORIGIN for manifest in support.committed(store)] == [0, 10]
    [name] = store.glob("dead-letters/a.jsonl/*.jsonl")
    assert [letter.reason for letter in read_dead_letters(store, name)] == ["ahead_of_arrival"]
    support.run(store, config)
    on_time = [Event("u", "i", second) for second in seconds if second < 3600]
    assert support.stored_events(store) == support.expected_events(on_time)
