"""Recall as served of two bundles on the same events, by user: what a user does within a window is one observation.

Events of one user depend on each other; that of different windows may, too, but each observation counts as what it is
expected to be given all before it, so that the interval holds nevertheless (`weir.contracts.confidence`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from weir.serving.client import RetrievalClient, RetrievalError, by_history
from weir.serving.errors import BundleVersionNotLoadedError
from weir.serving.monitor.recall import Example

__all__ = ["Pair", "PairedHits", "ask_both"]

Pair = tuple[str, str]
"""The versions of the champion and the challenger."""


@dataclass
class PairedHits:
    """Whether each answer had the event's item: (champion, challenger) of the events of each user, in their order."""

    hits: dict[int, list[tuple[bool, bool]]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)

    def means(self) -> npt.NDArray[np.float64]:
        """Return the mean hits of each user, (users, 2)."""
        found = [np.mean(each, axis=0) for each in self.hits.values()]
        return np.array(found, np.float64).reshape(-1, 2)


def ask_both(
    client: RetrievalClient,
    examples: Sequence[Example],
    k: int,
    *,
    batch: int,
    pair: Callable[[], Pair | str],
) -> PairedHits:
    """Ask both bundles about the examples, `batch` per request, as a product would.

    `pair` returns the versions to ask, or the reason why their answers do not count; it is called for every batch,
    since bundles are swapped meanwhile. Raises `RetrievalError`, but not where that happens between two requests.
    """
    found = PairedHits()
    for start in range(0, len(examples), batch):
        some = examples[start : start + batch]
        versions = pair()
        answers = versions if isinstance(versions, str) else _answers(client, some, k, versions)
        if isinstance(answers, str):
            found.skipped[answers] += len(some)
            continue
        for example, champion, challenger in zip(some, *answers, strict=True):
            both = example.item in champion, example.item in challenger
            found.hits.setdefault(example.user, []).append(both)
    return found


def _answers(client: RetrievalClient, some: Sequence[Example], k: int, pair: Pair) -> list[list[list[str]]] | str:
    queries = [by_history(example.history, k, features=example.features) for example in some]
    try:
        answers = [client.retrieve(queries, exclude_seen=True, probe=True, bundle_version=one) for one in pair]
    except RetrievalError as error:
        if error.reason != BundleVersionNotLoadedError.reason:
            raise
        return "swapped"
    return [[hits.item_ids for hits in answer.hits] for answer in answers]
