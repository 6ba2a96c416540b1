from pathlib import Path

from benchmarks.ranks_memory import _MB, _SECONDS, _WAITS, figures
from benchmarks.sharded import Counted
from weir.contracts import Store
from weir.contracts.checkpoint import checkpoint_names


def test_a_rank_finds_a_figure_for_each_column(tmp_path: Path) -> None:
    found = dict(
        zip((*_MB, *_SECONDS, *_WAITS), figures(1000, 100, str(tmp_path), Counted(), features=True), strict=True)
    )
    # Of a thousand items only this is sure to need new memory: the pages of what is read back.
    assert found["mapped"] > 2 * 256 * 1000 / 1e6
    assert min(found[name] for name in ("exporting", "kept", "loading", "test", "export", "save", "load", "wait")) >= 0
    assert found["sent in the test"] == 0
    assert len(checkpoint_names(Store(str(tmp_path)))) == 2
