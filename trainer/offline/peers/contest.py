"""All peers on the cases of one test, each tuned on the validation part of the same plan."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from weir.trainer.offline.data import Interactions, Ints
from weir.trainer.offline.evaluator import Evaluator, Rules
from weir.trainer.offline.peers.methods import DECAY, EASE, ITEM_KNN, LAST_DAYS, eases, item_knns, last_days
from weir.trainer.offline.peers.queries import Catalogue
from weir.trainer.offline.peers.tuning import Candidate, best
from weir.trainer.ranking import Ranked

__all__ = ["LARGEST", "POPULARITY", "Contest", "Peer", "PeerReport"]

LARGEST: Final = 12_500
"""Items of which matrices of items by items are made: 625 MB each, and minutes of a core to invert one."""
POPULARITY: Final = "popularity"

PeerReport = Callable[[str], None]
"""Called with the name of each method before its work begins."""


@dataclass(frozen=True, eq=False)
class Peer:
    """A simple method: its name, the settings that validation chose, and its rankings of the test cases."""

    name: str
    settings: dict[str, float]
    ranked: Ranked


class Contest:
    """The peers of a log and its training part, for at most so many items.

    Parameters
    ----------
    interactions, train
        All interactions, and the row numbers of those to train on.
    rules
        Those of the test.
    largest
        Most items of which matrices of items by items are made.
    """

    def __init__(self, interactions: Interactions, train: Ints, rules: Rules, largest: int = LARGEST) -> None:
        self.interactions, self.train, self.largest = interactions, train, largest
        self.catalogue = Catalogue(interactions, train)
        # A random split has no order of time.
        self.decay = rules.protocol == "interaction"

    @property
    def left_out(self) -> dict[str, str]:
        """The peers that cannot be asked, each with the reason."""
        found = {}
        if self.interactions.timestamps is None:
            found[LAST_DAYS] = "the log has no times"
        items = len(self.catalogue)
        for method in (ITEM_KNN, EASE):
            if items > self.largest:
                why = f"{items:,} items in training; a matrix of items by items is made of at most {self.largest:,}"
                found |= {method: why, method + DECAY: why}
            elif not self.decay:
                found[method + DECAY] = "a random split has no order of time"
        return found

    def run(self, validation: Evaluator, test: Evaluator, report: PeerReport | None = None) -> list[Peer]:
        """Tune every peer that is not left out on validation, and rank the test with it; popularity comes first."""
        peers = [Peer(POPULARITY, {}, test.rank_by_popularity())]
        for name, candidates in self._methods():
            if report:
                report(name)
            chosen = best(candidates, validation)
            peers += [Peer(one.name, one.settings, test.rank_by(one.scores(test))) for one in chosen]
        return peers

    def _methods(self) -> Iterator[tuple[str, Iterator[Candidate]]]:
        absent = self.left_out
        if LAST_DAYS not in absent:
            yield LAST_DAYS, last_days(self.interactions, self.train)
        if ITEM_KNN not in absent:
            yield ITEM_KNN, item_knns(self.catalogue, decay=self.decay)
        if EASE not in absent:
            yield EASE, eases(self.catalogue, decay=self.decay)
