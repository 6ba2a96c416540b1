from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.readers.files import Event, write_delimited, write_gzip, write_lines, write_parquet
from weir.contracts import LogState
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import BrokerAwayError
from weir.pipelines.runs.run import END_OF_TIME
from weir.pipelines.sources.log import FileSource, log_source
from weir.pipelines.sources.plan import InHand, Seen, file_readings
from weir.readers import (
    PIECE_COST,
    Chunk,
    Reading,
    Validator,
    chunks_of,
    discover,
    extents,
    read_chunk,
)

WRITERS = {
    "a.jsonl": lambda path, events: write_lines(path, [event.line() for event in events]),
    "a.jsonl.gz": lambda path, events: write_gzip(path, [event.line() for event in events]),
    "a.csv": write_delimited,
    "a.tsv.gz": write_delimited,
    "a.parquet": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
@given(
    limit=st.integers(1, 60),
    lost=st.sets(st.integers(0, 12)),
    items=st.lists(st.sampled_from(["i", 'with "quotes",\nand lines', "x" * 400]), min_size=1, max_size=30),
)
@settings(max_examples=25)
def test_runs_read_every_row_once_and_none_costs_more_than_it_may(
    tmp_path_factory: pytest.TempPathFactory, name: str, limit: int, lost: set[int], items: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    events = [Event("u", f"{item}{number}", number) for number, item in enumerate(items)]
    for place in ("1", "2"):
        WRITERS[name](folder / f"{place}{name}", events)
    config = PipelineConfig(log=str(folder), run_bytes=300 * limit)
    piece = min(PIECE_COST, config.run_bytes // 8)
    found, in_hand, read = discover(config.log), InHand(), dict[str, list[str]]()
    largest = max(int(costs.max()) for one in found for _, costs in extents(Reading(one), config))
    for number, some in enumerate(FileSource(config).cut(found, LogState(), in_hand)):
        cost = 0
        for reading in file_readings(config, some, Seen.of(LogState(), in_hand)):
            chunks, stop = chunks_of(reading, 1 << 20)
            # A run that another writer has beaten counts for nothing.
            if number in lost and some != found:
                continue
            rows = [row for chunk in chunks for row in rows_of(chunk, config)]
            read.setdefault(reading.partition.key, []).extend(rows)
            in_hand.reached[reading.partition.key] = reading.partition.until or stop or END_OF_TIME
            last = reading.partition.until or END_OF_TIME
            new = sum(int(costs[behind <= last].sum()) for behind, costs in extents(reading, config))
            cost += piece + new if new else 0
        if not lost:
            assert cost <= config.run_bytes or cost <= piece + largest
    assert read == {one.key: [event.item for event in events] for one in found}


def rows_of(chunk: Chunk, config: PipelineConfig) -> list[str]:
    """The items of a chunk."""
    validator = Validator(config)
    blocks = [validator.validate(block)[0].rows for block in read_chunk(chunk, config, 7, 1 << 20)]
    return [item for rows in blocks for item in rows.column("item_id").to_pylist()]


def test_the_log_is_files_or_a_topic(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is neither a file nor a folder"):
        log_source(PipelineConfig(log=str(tmp_path / "nothing"))).discover()
    away = {"log": "kafka://127.0.0.1:1/clicks", "kafka": {"timeout_seconds": 0.2}}
    with pytest.raises(BrokerAwayError, match=r"kafka://127\.0\.0\.1:1/clicks"):
        log_source(PipelineConfig.model_validate(away)).discover()
