"""Recall of one window: sample events, ask the server with each event's own history, count.

Every event has one right answer, its item, so recall@k is the share of events whose item is among the k first: a mean
over events, in which an active user weighs more than a quiet one. Three metrics are kept apart, because they fail for
different reasons: `index` (does approximate search find what exact search finds), `model` (does exact search, nothing
left out, find the next item), `served` (does the answer that a product would show, items already seen left out).
A fourth, `committed`, is `served` with the history that was committed before the window: what the server itself knew
of the user while the window was open.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from weir.contracts import PADDING_KEY, Key, Label, WindowLog, WindowManifest, columns
from weir.serving.client import Hits, Retrieval, RetrievalClient, by_history
from weir.serving.monitor.ages import first_rows
from weir.serving.said import Features, said_in

__all__ = ["Example", "Tally", "ask", "index_recall", "sample"]

_TIE: Final = 1e-6
"""Relative difference below which two scores of one exact search are the same: sums differ with their order."""


@dataclass(frozen=True)
class Example:
    """An event: its item, its user, its time, and the ids of the user's items before it, oldest first.

    `committed` are those before the user's first event in the window. `features` are what the event says of the user.
    """

    item: str
    key: Key
    history: list[str]
    time_ms: int
    committed: list[str]
    user: Key
    features: Features = field(default_factory=dict)


@dataclass
class Tally:
    """Sums of a window; `values` holds (kind, k) -> recall of each example.

    `counted` are the examples whose answers count, in order, and the bundles that gave them.
    """

    values: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    counted: list[tuple[Example, str]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    versions: set[str] = field(default_factory=set)

    def add(self, kind: str, k: int, recall: float) -> None:
        """Add one example's recall."""
        self.values[kind, k].append(recall)

    def by_k(self, kind: str) -> dict[int, list[float]]:
        """Return the recall of each example by cut-off."""
        return {k: values for (name, k), values in sorted(self.values.items()) if name == kind}

    def mean(self, kind: str) -> dict[int, float]:
        """Return the mean by cut-off."""
        return {k: float(np.mean(values)) for k, values in self.by_k(kind).items()}

    def count(self, kind: str) -> int:
        """Return the number of examples of a kind."""
        return max((len(values) for (name, _), values in self.values.items() if name == kind), default=0)


def sample(windows: WindowLog, manifest: WindowManifest, ids: Mapping[int, str], size: int, seed: int) -> list[Example]:
    """Return up to `size` positive events of a pane, drawn by pane and seed alone, in random order.

    So the cases asked before the served bundle is trained on them are a sample, too.
    """
    wanted = [columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP, columns.HISTORY, columns.LABEL]
    said = [columns.USER_FEATURES] if manifest.user_features.names.all else []
    table = windows.all_examples(manifest, [*wanted, *said])
    places = np.flatnonzero(table[columns.LABEL].to_numpy() == Label.POSITIVE)
    places = np.random.default_rng([seed, manifest.sequence]).permutation(places)[:size]
    first = first_rows(table[columns.USER_KEY].to_numpy(), table[columns.TIMESTAMP].to_numpy())
    chosen = table.take(places)
    histories = (one[columns.HISTORY].to_pylist() for one in (chosen, table.take(first[places])))
    events = (chosen[name].to_pylist() for name in (columns.ITEM_KEY, columns.TIMESTAMP, columns.USER_KEY))
    return [
        Example(ids[item], Key(item), _named(history, ids), time_ms, _named(committed, ids), Key(user), features)
        for item, time_ms, user, history, committed, features in zip(*events, *histories, said_in(chosen), strict=True)
    ]


def _named(history: Sequence[int], ids: Mapping[int, str]) -> list[str]:
    """Return the known ids of a padded history."""
    return [ids[key] for key in history if key != PADDING_KEY and key in ids]


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
        answers, committed = _three(client, some, max(cutoffs), most), _committed(client, some, max(cutoffs))
        versions = {answer.bundle_version for answer in (*answers, *committed[1])}
        reason = "swapped" if len(versions) > 1 else unseen_by(answers[0].bundle_version)
        if reason is not None:
            tally.skipped[reason] += len(some)
            continue
        tally.versions |= versions
        tally.counted += [(example, answers[0].bundle_version) for example in some]
        for place, (example, *hits) in enumerate(zip(some, *(answer.hits for answer in answers), strict=True)):
            _count(tally, example.item, cutoffs, [*hits, committed[0].get(place, hits[2])])
    return tally


def _batches(examples: Sequence[Example], size: int) -> Iterator[Sequence[Example]]:
    return (examples[start : start + size] for start in range(0, len(examples), size))


def _three(
    client: RetrievalClient, some: Sequence[Example], k: int, most: int
) -> tuple[Retrieval, Retrieval, Retrieval]:
    """Ask exactly (for more than k, so that ties at the k-th place are seen), as configured, and as a product would."""
    wide = [by_history(example.history, min(2 * k, most), features=example.features) for example in some]
    queries = [by_history(example.history, k, features=example.features) for example in some]
    ask = partial(client.retrieve, probe=True)
    return ask(wide, exact=True), ask(queries), ask(queries, exclude_seen=True)


def _committed(client: RetrievalClient, some: Sequence[Example], k: int) -> tuple[dict[int, Hits], list[Retrieval]]:
    """Ask as a product would that knows committed histories alone; of the others the answer is the same."""
    places = [place for place, example in enumerate(some) if example.committed != example.history]
    if not places:
        return {}, []
    queries = [by_history(some[place].committed, k, features=some[place].features) for place in places]
    answer = client.retrieve(queries, exclude_seen=True, probe=True)
    return dict(zip(places, answer.hits, strict=True)), [answer]


def _count(tally: Tally, item: str, cutoffs: Sequence[int], answers: Sequence[Hits]) -> None:
    exact, approximate, served, committed = answers
    for k in cutoffs:
        tally.add("served", k, float(item in served.item_ids[:k]))
        tally.add("committed", k, float(item in committed.item_ids[:k]))
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
