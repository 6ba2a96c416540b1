import pytest

from trainer.export.gate import Verdict, judge


def verdict(new: dict[str, float], old: dict[str, float] | None, *, finite: bool = True) -> Verdict:
    return judge(new, old, figure="recall@20", tolerance=0.25, finite=finite)


@pytest.mark.parametrize(
    ("new", "old", "promoted"),
    [
        (0.31, 0.40, True),
        (0.29, 0.40, False),
        (0.90, 0.40, True),
        (0.0, 0.0, True),
        (float("nan"), 0.4, False),
    ],
)
def test_a_loss_beyond_the_tolerance_is_held(new: float, old: float, promoted: bool) -> None:
    found = verdict({"recall@20": new}, {"recall@20": old})
    assert found.promoted is promoted
    assert found.sentence.startswith("promoted" if promoted else "held")
    assert f"{old:.4f}" in found.sentence


def test_the_first_and_the_unevaluated_are_promoted() -> None:
    assert verdict({}, None).promoted
    assert verdict({"recall@20": 0.1}, {}).promoted
    assert verdict({}, {"recall@20": 0.1}).promoted


def test_numbers_that_are_not_finite_are_held_even_first() -> None:
    assert verdict({}, None, finite=False) == Verdict(
        promoted=False, sentence="held: its parameters or vectors contain NaN or infinity"
    )
