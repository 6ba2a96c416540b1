from itertools import pairwise

import pytest

from sketches import CountMinSketch
from sketches.sizing import sized


@pytest.mark.parametrize("conservative", [True, False], ids=["conservative", "linear"])
def test_smaller_errors_take_more_cells(conservative: bool) -> None:
    wanted = [1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 1e-3, 1e-4, 1e-5]
    cells = [sized(error, conservative=conservative)[1] for error in wanted]
    assert cells == sorted(cells)
    assert all(small < large for small, large in pairwise(cells[1:]))


def test_linear_needs_more_than_conservative() -> None:
    for error in (0.2, 0.05, 0.01, 0.001):
        assert sized(error, conservative=False)[1] > sized(error, conservative=True)[1]


@pytest.mark.parametrize("error", [0.0, -0.1, float("nan")])
def test_an_error_is_positive(error: float) -> None:
    with pytest.raises(ValueError, match=str(error)):
        sized(error, conservative=True)


def test_full_tables_take_two_rows_and_empty_ones_four() -> None:
    assert [sized(error, conservative=True)[0] for error in (0.4, 0.05, 0.02, 0.001)] == [2, 2, 4, 4]


def test_sized_for_needs_keys() -> None:
    with pytest.raises(ValueError, match="got 0"):
        CountMinSketch.sized_for(0, 0.1)
    assert CountMinSketch.sized_for(1, 0.1).width >= 2
