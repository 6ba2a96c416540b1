from benchmarks import publishing
from benchmarks.harness import figures_of_ranks
from weir.trainer.ranks.workers import Workers


def test_each_round_writes_complete_bundles_of_items_that_have_all_moved() -> None:
    waiting, beside = publishing.figures(2000, 2, "IVF8,SQfp16", Workers())
    for cpu, wait, published, _, moved, *steps in (waiting, beside):
        assert min(cpu, wait, *steps) > 0
        assert published >= wait
        assert moved == 1


def test_launchers_that_take_each_other_to_be_elsewhere_make_it_together() -> None:
    first, second = figures_of_ranks(2, "benchmarks.publishing", 2000, 1, "IVF8,SQfp16", machines=2)
    assert first[:, 0].min() > 0
    assert second[:, 0].min() > 0
    assert first[:, 4].tolist() == [1, 1]
