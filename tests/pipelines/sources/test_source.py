from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import LogState, SourceSpan
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import BrokerAwayError
from weir.pipelines.sources.plan import InHand
from weir.pipelines.sources.source import FileSource, log_source
from weir.readers import Format, Partition


@given(
    st.lists(st.integers(0, 3000), max_size=12), st.lists(st.integers(0, 3000), max_size=12), st.integers(1000, 4000)
)
def test_runs_read_about_as_much_as_memory_allows_and_at_last_all(
    sizes: list[int], read: list[int], limit: int
) -> None:
    found = [Partition(f"{n}.jsonl", f"/{n}.jsonl", Format.JSON_LINES, size) for n, size in enumerate(sizes)]
    spans = {f"{n}.jsonl": SourceSpan(start=0, stop=size, resume=size, size=size) for n, size in enumerate(read)}
    source = FileSource(PipelineConfig(log="log", run_bytes=limit))
    runs = list(source.cut(found, LogState(sources=spans), InHand()))
    assert runs[-1] == found
    assert all(run == found[: len(run)] for run in runs)
    new = [max(0, one.size - (spans[one.key].size if one.key in spans else 0)) for one in found]
    ends = [0, *accumulate(new)]
    steps = [0, *(len(run) for run in runs)]
    for before, after in pairwise(steps):
        assert ends[after] - ends[before] <= 2 * limit + max(new, default=0)


def test_the_log_is_files_or_a_topic(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is neither a file nor a folder"):
        log_source(PipelineConfig(log=str(tmp_path / "nothing"))).discover()
    away = {"log": "kafka://127.0.0.1:1/clicks", "kafka": {"timeout_seconds": 0.2}}
    with pytest.raises(BrokerAwayError, match=r"kafka://127\.0\.0\.1:1/clicks"):
        log_source(PipelineConfig.model_validate(away)).discover()
