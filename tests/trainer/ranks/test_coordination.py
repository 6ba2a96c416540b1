"""Who goes on when nodes are asked to stop; the ranks of real nodes are in tests/integration."""

import json
import socket
import time
from pathlib import Path
from threading import Event

import pytest

from tests.ranks import run_on_ranks
from weir.trainer.ranks.coordination import NodeLeftError, Pace, done_by_all, is_left_to_others, require_asked
from weir.trainer.ranks.workers import Workers


def signal(is_set: bool) -> Event:
    stop = Event()
    if is_set:
        stop.set()
    return stop


class Among(Workers):
    """A rank on one of several nodes, of which some are asked to stop; `first` says whether that of rank 0 is."""

    def __init__(self, rank: int, *, some: bool, first: bool) -> None:
        super().__init__(rank, 1)
        self._some, self._first = some, first

    @property
    def has_nodes(self) -> bool:
        return True

    def any(self, here: bool) -> bool:
        assert self._some or not here
        return self._some

    def broadcast(self, payload: object) -> object:  # type: ignore[override]
        return payload if self.is_first else self._first


@pytest.mark.parametrize(
    ("rank", "asked", "some", "first", "left"),
    [
        (0, False, True, False, True),
        (1, True, True, False, True),
        (0, True, True, True, False),
        (1, False, True, True, False),
        (0, False, False, False, False),
        (1, False, False, False, False),
    ],
)
def test_the_run_is_left_to_others_unless_the_first_node_is_asked(
    rank: int, asked: bool, some: bool, first: bool, left: bool
) -> None:
    workers = Among(rank, some=some, first=first)
    assert is_left_to_others(signal(is_set=asked), workers) == left
    if some and not asked:
        with pytest.raises(NodeLeftError, match="starts again without it"):
            require_asked(signal(is_set=asked), workers)
    else:
        require_asked(signal(is_set=asked), workers)


def test_one_node_stops_as_a_whole() -> None:
    assert not is_left_to_others(signal(is_set=True), Workers())
    require_asked(signal(is_set=False), Workers())


SCRIPT = Path(__file__).with_name("pace_of_ranks.py")


def test_ranks_hear_which_of_them_is_slow(tmp_path: Path) -> None:
    run_on_ranks(2, SCRIPT, str(tmp_path), "0.2")
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first["nodes"] == [socket.gethostname()] * 2
    assert first["any"] == [True, False]
    # A group whose threads outlive it may take the process down at its end.
    assert first["left"] == []
    for quick, slow in first["told"]:
        assert slow >= 0.2
        assert quick < slow / 2


def test_a_rank_alone_waits_for_nobody() -> None:
    pace = Pace(Workers())
    for _ in range(2):
        with pace.step():
            time.sleep(0.02)
    [mean] = pace.of_ranks()
    assert mean >= 0.02
    assert pace.of_ranks() == [0]


def test_work_that_is_done_is_done() -> None:
    done_by_all(Workers(), lambda: 3, 3)


def test_work_that_lacks_something_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ranks have done 2 items of 3: the log of a rank that failed says why"):
        done_by_all(Workers(), lambda: 2, 3)


def test_the_error_of_rank_0_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        done_by_all(Workers(), lambda: 1 // 0, 3)
