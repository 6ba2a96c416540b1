"""Recall of one window: sample events, ask the server with each event's own history, count hits.

Every event has one right answer, its item, so recall@k is the share of events whose item is among the first k: a mean
over events, in which an active user weighs more than a quiet one. Four recalls are kept apart, because they drop for
different reasons:

- `index`: the share of the exact top k that approximate search finds;
- `model`: the next item is found by exact search, with seen items included;
- `served`: the next item is in the answer that a product would show, without seen items;
- `committed`: as `served`, with the history that was committed before the window, as the server knew it then.

The popularity baseline is cached in the store, so that a restart reads only later windows; it can be rebuilt from the
windows that are left.
"""

import io
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weir.contracts import (
    PADDING_KEY,
    BundleManifest,
    CommitLog,
    CorruptArtefactError,
    ItemKeys,
    Key,
    Label,
    Store,
    WindowLog,
    WindowManifest,
)
from weir.contracts.base import columns
from weir.contracts.base.models import CommitRef
from weir.contracts.bundles.variants import log_of_version
from weir.contracts.commits.commit_log import LogMismatchError
from weir.contracts.commits.retention_horizon import MonitorPlace
from weir.contracts.storage.documents import seal, unseal
from weir.serving.client import Hits, Retrieval, RetrievalClient, by_history
from weir.serving.monitor.results import Examples, WindowRecall, first_rows, load, recorded
from weir.serving.search.queries import Features, said_in
from weir.sketches import FrequencyView

__all__ = [
    "Example",
    "Popularity",
    "Tally",
    "ask",
    "index_recall",
    "is_of_log",
    "is_recorded",
    "manifest_of",
    "place_in",
    "result_of",
    "sample",
    "summary_of",
]

log = logging.getLogger(__name__)

_NAME: Final = "state/popularity"

_TIE: Final = 1e-6
"""Relative difference below which two exact scores count as equal: sums differ with their order."""


@dataclass
class Popularity:
    """The popularity baseline: decayed counts of the items of all windows added so far, and item ids by key.

    A window's counts halve with every `half_life_seconds` of event time; a late window counts as if it had been added
    in time. `sequence` is the newest pane added, and `commit` its commit.
    """

    half_life_seconds: float
    ids: dict[int, str] = field(default_factory=dict)
    sequence: int = -1
    commit: CommitRef | None = None
    _recent: FrequencyView = field(init=False)

    def __post_init__(self) -> None:
        self._recent = FrequencyView(self.half_life_seconds)

    @classmethod
    def load(cls, store: Store, half_life_seconds: float) -> "Popularity":
        """Return the stored counts; empty counts if they are missing, damaged, or have another half-life."""
        try:
            table = pq.read_table(pa.BufferReader(unseal(store.path(_NAME), store.read(_NAME))))
            facts = {name.decode(): value for name, value in table.schema.metadata.items()}
            if float(facts["half_life"]) == half_life_seconds:
                ids = zip(table[columns.ITEM_KEY].to_pylist(), table[columns.ITEM_ID].to_pylist(), strict=True)
                commit = CommitRef.model_validate_json(facts["commit"]) if "commit" in facts else None
                popularity = cls(half_life_seconds, dict(ids), int(facts["sequence"]), commit)
                CommitLog(store).require(store.path(_NAME), popularity.sequence, commit)
                popularity._recent.load_state_dict({"sketch": np.frombuffer(facts["sketch"], np.uint8)})
                popularity._recent.time_ms = int(facts["time_ms"])
                return popularity
            log.info("the popularity baseline has another half-life now: it is counted again")
        except FileNotFoundError:
            pass
        except (CorruptArtefactError, LogMismatchError, pa.ArrowException, KeyError, ValueError) as error:
            log.warning("%s is not used, popularity is counted again: %s", store.path(_NAME), error)
        return cls(half_life_seconds)

    def save(self, store: Store) -> None:
        """Store the counts; at least one window must have been added."""
        facts = {
            "half_life": repr(self.half_life_seconds),
            "sequence": str(self.sequence),
            "time_ms": str(self._recent.time_ms),
            "sketch": self._recent.state_dict()["sketch"].tobytes(),
        }
        if self.commit is not None:
            facts["commit"] = self.commit.model_dump_json()
        keys, ids = pa.array(self.ids.keys(), pa.int64()), pa.array(self.ids.values(), pa.string())
        table = pa.table({columns.ITEM_KEY: keys, columns.ITEM_ID: ids}).replace_schema_metadata(facts)
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        store.write(_NAME, seal(_NAME, buffer.getvalue()))

    def name(self, windows: WindowLog, manifest: WindowManifest) -> None:
        """Add the ids of a window's items, without counting them."""
        items = windows.items(manifest)
        self.ids.update(zip(items[columns.ITEM_KEY].to_pylist(), items[columns.ITEM_ID].to_pylist(), strict=True))

    def add(self, windows: WindowLog, manifest: WindowManifest) -> None:
        """Count a window's items, and add their ids; raises `CorruptArtefactError`."""
        self.name(windows, manifest)
        sketch = windows.sketch(manifest)
        try:
            self._recent.add(sketch, manifest.end_ms)
        except ValueError as error:
            log.warning("the windows' sketches changed, popularity starts from zero: %s", error)
            self._recent = FrequencyView(self.half_life_seconds)
            self._recent.add(sketch, manifest.end_ms)
        self.sequence, self.commit = manifest.sequence, windows.last

    def top(self, k: int) -> list[Key]:
        """Return the keys of the `k` most frequent items, most frequent first; empty before the first window."""
        if self._recent.sketch is None:
            return []
        keys = ItemKeys(np.fromiter(self.ids, np.int64, len(self.ids)))
        order = np.argsort(-self._recent.counts(keys), kind="stable")
        return [Key(key) for key in keys[order[:k]].tolist()]


@dataclass(frozen=True)
class Example:
    """An event to ask about: its item (id and `key`), its user's key, and its time.

    `history` are the ids of the user's items before the event, oldest first; `committed` only those before the user's
    first event in the window. `features` are the event's user features.
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
    """Collects the recall of a window's examples: `values` maps (kind of recall, k) to a recall for each example.

    `counted` are the examples whose answers count, each with the bundle version that answered; `skipped` counts the
    other examples by reason. `versions` are all versions that answered.
    """

    values: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    counted: list[tuple[Example, str]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    versions: set[str] = field(default_factory=set)

    def add(self, kind: str, k: int, recall: float) -> None:
        """Add one example's recall at `k`; `kind` is the kind of recall, such as ``model``."""
        self.values[kind, k].append(recall)

    def by_k(self, kind: str) -> dict[int, list[float]]:
        """Return k -> the recall of each example, for one kind of recall."""
        return {k: values for (name, k), values in sorted(self.values.items()) if name == kind}

    def mean(self, kind: str) -> dict[int, float]:
        """Return k -> the mean recall, for one kind of recall."""
        return {k: float(np.mean(values)) for k, values in self.by_k(kind).items()}

    def count(self, kind: str) -> int:
        """Return the number of examples that have this kind of recall."""
        return max((len(values) for (name, _), values in self.values.items() if name == kind), default=0)


def sample(windows: WindowLog, manifest: WindowManifest, ids: Mapping[int, str], size: int, seed: int) -> list[Example]:
    """Return up to `size` positive events of a pane in random order; the draw depends on pane and seed alone.

    `ids` maps item keys to ids. As the order is random, the events asked about before a swap are a sample, too.
    """
    wanted = [columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP, columns.HISTORY, columns.LABEL]
    said = [columns.USER_FEATURES] if manifest.user_features.names.all else []
    table = windows.all_examples(manifest, [*wanted, *said])
    places = np.flatnonzero(table[columns.LABEL].to_numpy() == Label.POSITIVE)
    places = np.random.default_rng([seed, manifest.sequence]).permutation(places)[:size]
    first = first_rows(table[columns.USER_KEY].to_numpy(), table[columns.TIMESTAMP].to_numpy())
    chosen = table.take(places)
    histories = (rows[columns.HISTORY].to_pylist() for rows in (chosen, table.take(first[places])))
    events = (chosen[name].to_pylist() for name in (columns.ITEM_KEY, columns.TIMESTAMP, columns.USER_KEY))
    return [
        Example(ids[item], Key(item), _named(history, ids), time_ms, _named(committed, ids), Key(user), features)
        for item, time_ms, user, history, committed, features in zip(*events, *histories, said_in(chosen), strict=True)
    ]


def _named(history: Sequence[int], ids: Mapping[int, str]) -> list[str]:
    """Return the ids of the items in a padded history of keys; items without an id are left out."""
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
    """Ask the server about the examples, `batch` per request, and return the recalls at the `cutoffs`.

    `most` is the server's largest k. `unseen_by` returns the reason why answers of a bundle version do not count, or
    None. Raises `RetrievalError`.
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
    """Return three answers to the examples: by exact search, by the served index, and without seen items.

    The exact answer has up to 2k items, to show ties at the k-th place.
    """
    wide = [by_history(example.history, min(2 * k, most), features=example.features) for example in some]
    queries = [by_history(example.history, k, features=example.features) for example in some]
    ask = partial(client.retrieve, probe=True)
    return ask(wide, exact=True), ask(queries), ask(queries, exclude_seen=True)


def _committed(client: RetrievalClient, some: Sequence[Example], k: int) -> tuple[dict[int, Hits], list[Retrieval]]:
    """Ask with committed histories, without seen items, about the examples whose committed history differs.

    Returns the hits by the example's place in `some`, and the answer in a list, empty if no history differs.
    """
    places = [place for place, example in enumerate(some) if example.committed != example.history]
    if not places:
        return {}, []
    queries = [by_history(some[place].committed, k, features=some[place].features) for place in places]
    answer = client.retrieve(queries, exclude_seen=True, probe=True)
    return dict(zip(places, answer.hits, strict=True)), [answer]


def _count(tally: Tally, item: str, cutoffs: Sequence[int], answers: Sequence[Hits]) -> None:
    """Add an example's recalls; the answers are: exact, approximate, served, and served with committed history."""
    exact, approximate, served, committed = answers
    for k in cutoffs:
        tally.add("served", k, float(item in served.item_ids[:k]))
        tally.add("committed", k, float(item in committed.item_ids[:k]))
        if not exact.fallback:
            tally.add("model", k, float(item in exact.item_ids[:k]))
            tally.add("index", k, index_recall(exact, approximate.item_ids, k))


def index_recall(exact: Hits, found: Sequence[str], k: int) -> float:
    """Return the share of the exact top k that an approximate search has `found`, by its first k ids.

    Items whose exact score equals that of the k-th item count as part of the top k.
    """
    best = exact.scores[:k].astype(np.float64)
    if not len(best):
        return 1.0
    least = best[-1] - _TIE * max(1.0, abs(best[-1]))
    scores = dict(zip(exact.item_ids, exact.scores, strict=True))
    good = sum(scores.get(item, -np.inf) >= least for item in found[:k])
    return min(1.0, float(good / len(best)))


def place_in(store: Store) -> MonitorPlace:
    """Return the monitor's stored progress; if it is missing or damaged, derive it from all stored results."""
    try:
        if (place := MonitorPlace.read(store)) is not None:
            return place
    except CorruptArtefactError as error:
        log.warning("all results are read instead: %s", error)
    results = recorded(store)
    return MonitorPlace(
        measured=max((result.sequence for result in results), default=-1),
        reported=max((result.sequence for result in results if result.freshness), default=-1),
    )


def is_recorded(store: Store, manifest: WindowManifest) -> bool:
    """Return whether a window has a readable result; a killed monitor may have stored one without its progress."""
    try:
        return load(store, manifest) is not None
    except CorruptArtefactError:
        return False


def manifest_of(store: Store, version: str) -> BundleManifest | None:
    """Return the manifest of a bundle version; None if the bundle was removed."""
    try:
        return log_of_version(store, version).manifest(version)
    except FileNotFoundError:
        return None


def is_of_log(commits: CommitLog, version: str, sequence: int, commit: CommitRef | None) -> bool:
    """Return whether a bundle was trained on the windows of this commit log; if not, log a warning.

    `sequence` is the last pane that the bundle was trained on, and `commit` the pane's commit.
    """
    try:
        commits.require(f"bundle {version}", sequence, commit)
    except LogMismatchError as error:
        log.warning("its answers do not count: %s", error)
        return False
    return True


def result_of(manifest: WindowManifest, tally: Tally, sampled: int) -> WindowRecall:
    """Return the result of a window; `sampled` is the number of events in the sample."""
    return WindowRecall(
        sequence=manifest.sequence,
        window=str(manifest.name),
        measured_at=time.time(),
        bundle_versions=tuple(sorted(tally.versions)),
        examples=Examples(
            sampled=sampled,
            model=tally.count("model"),
            served=tally.count("served"),
            popularity=tally.count("popularity"),
            skipped=dict(tally.skipped),
        ),
        index=tally.mean("index"),
        model=tally.mean("model"),
        served=tally.mean("served"),
        committed=tally.mean("committed"),
        popularity=tally.mean("popularity"),
    )


def summary_of(result: WindowRecall) -> tuple[str, ...]:
    """Return texts for the log: the window, and its recalls of model, served answers and popularity."""

    def short(values: dict[int, float]) -> str:
        return " ".join(f"@{k}={value:.3f}" for k, value in values.items()) or "-"

    return result.window, short(result.model), short(result.served), short(result.popularity)
