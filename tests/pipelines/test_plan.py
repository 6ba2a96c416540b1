from pathlib import Path

import pytest

from contracts import Store
from pipelines.sources import discover
from pipelines.transforms.read import Reading, first_block
from tests.pipelines import support
from tests.pipelines.support import Event


def lines(*seconds: int) -> list[str]:
    return [Event("u", "i", second).line() for second in seconds]


def test_only_what_is_new_has_grown_or_is_open_is_read(tmp_path: Path) -> None:
    config, store = support.config(tmp_path), Store(str(tmp_path / "store"))
    log = tmp_path / "log"
    support.write_lines(log / "done.jsonl", lines(1, 2))
    support.write_lines(log / "grown.jsonl", lines(1))
    support.write_lines(log / "open.jsonl", lines(2, 3, 41, 42))
    support.run(store, config, flush=False)
    assert not support.plan_of(store, config).is_needed
    support.write_lines(log / "grown.jsonl", lines(4))
    support.write_lines(log / "new.jsonl", lines(5))
    plan = support.plan_of(store, config)
    length = len(lines(1)[0])
    starts = {reading.partition.key: reading.start for reading in plan.readings}
    assert starts == {"grown.jsonl": length, "new.jsonl": 0, "open.jsonl": lines_before_open()}
    assert plan.is_needed
    assert plan.run.committed.counted.keys() == {1000 * support.ORIGIN}
    assert plan.run.committed.counted[1000 * support.ORIGIN].keys() == {"grown.jsonl", "open.jsonl"}


def lines_before_open() -> int:
    return sum(map(len, lines(2, 3)))


def test_a_run_that_was_cut_short_is_needed_again(tmp_path: Path) -> None:
    config, store = support.config(tmp_path), Store(str(tmp_path / "store"))
    support.write_lines(tmp_path / "log/a.jsonl", lines(1, 11, 21))
    support.run(store, config)
    assert not support.plan_of(store, config).readings
    store.remove(f"{support.committed(store)[-1].name.folder}/MANIFEST.json")
    plan = support.plan_of(store, config)
    assert plan.is_needed
    assert [reading.start for reading in plan.readings] == [0]
    support.run(store, config)
    assert support.stored_events(store) == support.expected_events([Event("u", "i", s) for s in (1, 11, 21)])


@pytest.mark.parametrize(("suffix", "start", "first"), [("jsonl", 450, 400), ("jsonl.gz", 7, 6), ("parquet", 7, 5)])
def test_the_first_block_begins_at_or_below_the_start(tmp_path: Path, suffix: str, start: int, first: int) -> None:
    support.write_lines(tmp_path / f"log/a.{suffix}", ["x"])
    [partition] = discover(str(tmp_path / "log"))
    assert first_block(Reading(partition, start), support.config(tmp_path)) == first
