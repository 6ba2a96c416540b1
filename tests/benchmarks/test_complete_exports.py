import pytest

from benchmarks import complete_exports
from trainer.ranks.workers import Workers


def test_each_round_writes_a_complete_bundle_of_items_that_have_all_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete_exports, "train_quickly", lambda: None)
    cpu, wait, _, moved = complete_exports.figures(2000, 2, "IVF8,SQfp16", Workers())
    assert min(cpu, wait) > 0
    assert moved == 1
