from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.offline.report.look import DARK, LIGHT, spread, stroke

PLACES = st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 0.08)), min_size=1, max_size=12)


@given(PLACES)
def test_labels_keep_their_order_do_not_overlap_and_stay_within_the_axes(things: list[tuple[float, float]]) -> None:
    things.sort()
    wanted, sizes = zip(*things, strict=True)
    places = spread(wanted, sizes)
    for (low, one), (high, other) in pairwise(zip(places, sizes, strict=True)):
        assert high - low >= (one + other) / 2 - 1e-9
    assert min(places) >= -1e-9
    assert max(places) <= 1 + 1e-9


@given(st.integers(1, 9), st.floats(0, 0.05))
def test_labels_with_room_stay_where_they_are(number: int, size: float) -> None:
    wanted = [float(place) for place in np.linspace(0, 1, number)]
    assert spread(wanted, [size] * number) == pytest.approx(wanted)


def test_two_labels_that_want_one_place_move_by_the_same_amount() -> None:
    assert spread([0.5, 0.5], [0.1, 0.1]) == pytest.approx([0.45, 0.55])


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_eighteen_rows_look_different_and_stand_out_from_both_grounds() -> None:
    looks = [stroke(number) for number in range(18)]
    assert len(set(looks)) == 18
    for look in looks:
        for theme in (LIGHT, DARK):
            assert contrast(look.colour, theme.ground) > 2, look
    for theme in (LIGHT, DARK):
        assert contrast(theme.ink, theme.ground) > 7
        assert contrast(theme.muted, theme.ground) > 4.5
