"""Who goes on when nodes are asked to stop; the ranks of real nodes are in tests/integration."""

from dataclasses import dataclass

import pytest

from weir.trainer.ranks.leaving import NodeLeftError, is_left_to_others, require_asked
from weir.trainer.ranks.workers import Workers


@dataclass
class Asked:
    """A process that is asked to stop, or not."""

    requested: bool


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
    assert is_left_to_others(Asked(asked), workers) == left
    if some and not asked:
        with pytest.raises(NodeLeftError, match="starts again without it"):
            require_asked(Asked(asked), workers)
    else:
        require_asked(Asked(asked), workers)


def test_one_node_stops_as_a_whole() -> None:
    assert not is_left_to_others(Asked(requested=True), Workers())
    require_asked(Asked(requested=False), Workers())
