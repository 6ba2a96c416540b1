import pytest

from weir.trainer.ranks.parts import done_by_all
from weir.trainer.ranks.workers import Workers


def test_work_that_is_done_is_done() -> None:
    done_by_all(Workers(), lambda: 3, 3)


def test_work_that_lacks_something_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ranks have done 2 items of 3: the log of a rank that failed says why"):
        done_by_all(Workers(), lambda: 2, 3)


def test_the_error_of_rank_0_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        done_by_all(Workers(), lambda: 1 // 0, 3)
