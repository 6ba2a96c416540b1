import pytest

from benchmarks import featured_exports
from weir.trainer.ranks.workers import Workers


def test_both_ways_find_items_that_have_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(featured_exports, "train_quickly", lambda: None)
    for cpu, wait, _, moved in featured_exports.figures(2000, 70_000, 0.01, 1, Workers()):
        assert min(cpu, wait) > 0
        # Ten of a thousand tags, and what shares a bucket with them.
        assert 0.005 < moved < 0.05
