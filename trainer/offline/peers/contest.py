"""Run all peers on the cases of one test, each tuned on the validation part of the same plan."""

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
"""Most items for an item-item matrix: 625 MB, and minutes on a core to invert it."""
POPULARITY: Final = "popularity"

PeerReport = Callable[[str], None]
"""Called with the name of each method before it starts."""


@dataclass(frozen=True, eq=False)
class Peer:
    """A simple method: its name, its tuned settings, and its rankings of the test cases."""

    name: str
    settings: dict[str, float]
    ranked: Ranked


class Contest:
    """The peers for one training part; item-kNN and EASE only up to a number of items.

    Parameters
    ----------
    interactions, train
        All interactions, and the row numbers of the training part.
    rules
        Protocol of the test.
    largest
        Most items for an item-item matrix.
    """

    def __init__(self, interactions: Interactions, train: Ints, rules: Rules, largest: int = LARGEST) -> None:
        self.interactions, self.train, self.largest = interactions, train, largest
        self.catalogue = Catalogue(interactions, train)
        # A random split has no time order, so recency decay is meaningless.
        self.decay = rules.protocol == "interaction"

    @property
    def left_out(self) -> dict[str, str]:
        """Peers that cannot run, each with the reason."""
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
        """Tune every available peer on validation, and rank the test cases with it; popularity comes first."""
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
