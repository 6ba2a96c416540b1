"""Recall of one window: sample events, ask the server with each event's own history, count.

Every event has one right answer, its item, so recall@k is the share of events whose item is among the k first: a mean
over events, in which an active user weighs more than a quiet one. Three metrics are kept apart, because they fail for
different reasons: `index` (does approximate search find what exact search finds), `model` (does exact search, nothing
left out, find the next item), `served` (does the answer that a product would show, items already seen left out).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from contracts import PADDING_KEY, ItemKeys, Key, Label, WindowLog, WindowManifest, columns
from serving.client import Hits, Retrieval, RetrievalClient, by_history

__all__ = ["Example", "Tally", "ask", "index_recall", "sample"]

_TIE: Final = 1e-6
"""Relative difference below which two scores of one exact search are the same: sums differ with their order."""


@dataclass(frozen=True)
class Example:
    """An event: its item, and the ids of the user's items before it, oldest first."""

    item: str
    key: Key
    history: list[str]


@dataclass
class Tally:
    """Sums of a window; `values` holds (kind, k) -> recall of each example."""

    values: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    skipped: Counter[str] = field(default_factory=Counter)
    versions: set[str] = field(default_factory=set)

    def add(self, kind: str, k: int, recall: float) -> None:
        """Add one example's recall."""
        self.values[kind, k].append(recall)

    def mean(self, kind: str) -> dict[int, float]:
        """Return the mean by cut-off."""
        return {k: float(np.mean(values)) for (name, k), values in sorted(self.values.items()) if name == kind}

    def count(self, kind: str) -> int:
        """Return the number of examples of a kind."""
        return max((len(values) for (name, _), values in self.values.items() if name == kind), default=0)


def sample(windows: WindowLog, manifest: WindowManifest, ids: Mapping[int, str], size: int, seed: int) -> list[Example]:
    """Return up to `size` positive events of a window, drawn by window and seed alone, in order of storage."""
    table = windows.all_examples(manifest, [columns.ITEM_KEY, columns.HISTORY, columns.LABEL])
    places = np.flatnonzero(table[columns.LABEL].to_numpy() == Label.POSITIVE)
    if len(places) > size:
        places = np.sort(np.random.default_rng([seed, manifest.sequence]).choice(places, size, replace=False))
    chosen = table.take(places)
    items: ItemKeys = chosen[columns.ITEM_KEY].to_numpy()
    return [
        Example(ids[item], Key(item), [ids[key] for key in history if key != PADDING_KEY and key in ids])
        for item, history in zip(items.tolist(), chosen[columns.HISTORY].to_pylist(), strict=True)
    ]


def ask(
    client: RetrievalClient,
    examples: Sequence[Example],
    cutoffs: Sequence[int],
    *,
    batch: int,
    most: int,
    unseen_by: Callable[[str], str | None],
) -> Tally:
    """Ask the server about the examples, `batch` per request.

    `most` is the server's largest k. `unseen_by` says why a bundle's answers do not count, or None when they do. Raises
    `RetrievalError`.
    """
    tally = Tally()
    for some in _batches(examples, batch):
        exact, approximate, served = _three(client, some, max(cutoffs), most)
        versions = {exact.bundle_version, approximate.bundle_version, served.bundle_version}
        reason = "swapped" if len(versions) > 1 else unseen_by(exact.bundle_version)
        if reason is not None:
            tally.skipped[reason] += len(some)
            continue
        tally.versions |= versions
        for example, *answers in zip(some, exact.hits, approximate.hits, served.hits, strict=True):
            _count(tally, example.item, cutoffs, answers)
    return tally


def _batches(examples: Sequence[Example], size: int) -> Iterator[Sequence[Example]]:
    return (examples[start : start + size] for start in range(0, len(examples), size))


def _three(
    client: RetrievalClient, some: Sequence[Example], k: int, most: int
) -> tuple[Retrieval, Retrieval, Retrieval]:
    """Ask exactly (for more than k, so that ties at the k-th place are seen), as configured, and as a product would."""
    wide = [by_history(example.history, min(2 * k, most)) for example in some]
    queries = [by_history(example.history, k) for example in some]
    ask = partial(client.retrieve, probe=True)
    return ask(wide, exact=True), ask(queries), ask(queries, exclude_seen=True)


def _count(tally: Tally, item: str, cutoffs: Sequence[int], answers: Sequence[Hits]) -> None:
    exact, approximate, served = answers
    for k in cutoffs:
        tally.add("served", k, float(item in served.item_ids[:k]))
        if not exact.fallback:
            tally.add("model", k, float(item in exact.item_ids[:k]))
            tally.add("index", k, index_recall(exact, approximate.item_ids, k))


def index_recall(exact: Hits, found: Sequence[str], k: int) -> float:
    """Return the share of the exact top k that was found, any item as good as the k-th counting as one of them.

    Items are judged by the exact search's scores: those of a compressed index are off.
    """
    best = exact.scores[:k].astype(np.float64)
    if not len(best):
        return 1.0
    least = best[-1] - _TIE * max(1.0, abs(best[-1]))
    scores = dict(zip(exact.item_ids, exact.scores, strict=True))
    good = sum(scores.get(item, -np.inf) >= least for item in found[:k])
    return min(1.0, float(good / len(best)))
