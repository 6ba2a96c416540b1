"""Compares challenger and champion: recall on the same events, and clicks by user, each user counted once.

Each user belongs to one side for good, and gives one observation, however often the user acts: otherwise a few heavy
clickers could make any two bundles differ. A user's lists of the first `seconds` count, if the bundle of the user's own
side answered, and clicks on these lists until twice as long after the first list. Then the observation is made, and the
user never counts again.

Events of one user depend on each other. Observations from different windows may do so, too, but the interval only needs
the expectation of each observation given the earlier ones (`weir.contracts.base.statistics`).

Events that cannot be compared are skipped and counted; no failure here stops the monitor.
"""

import base64
import logging
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import CommitLog, CorruptArtefactError, Key, Store, WindowManifest, hash_ids
from weir.contracts.base import columns
from weir.contracts.base.models import CommitRef
from weir.contracts.base.statistics import Running
from weir.contracts.bundles.variants import MEASURES, Comparison, challenges, roles_in, slot_of, variant_of
from weir.contracts.commits.commit_log import LogMismatchError
from weir.contracts.served_lists import ServedList, joined_list
from weir.runtime.log_once import LogOnce
from weir.serving.client import Info, RetrievalClient, RetrievalError, by_history
from weir.serving.errors import BundleVersionNotLoadedError
from weir.serving.monitor.attribution import Click
from weir.serving.monitor.config import MonitorConfig
from weir.serving.monitor.metrics import VariantMetrics
from weir.serving.monitor.recall import Example

__all__ = [
    "Comparing",
    "Contest",
    "CountedUsers",
    "Observation",
    "Pair",
    "PairedHits",
    "Sides",
    "UserClicks",
    "ask_both",
]

log = logging.getLogger(__name__)

Pair = tuple[str, str]
"""The versions of the champion and the challenger."""

_SLOTS: Final = 1 << 20
"""Number of slots to which users are assigned by hash.

Of 100,000 users about 5 % fall into an occupied slot and are left out, at random.
"""


def _empty() -> npt.NDArray[np.uint8]:
    return np.zeros(_SLOTS // 8, np.uint8)


@dataclass
class CountedUsers:
    """The set of counted users, as a bit for each hash of user and challenger; users with equal hashes count as one."""

    challenger: str
    _bits: npt.NDArray[np.uint8] = field(default_factory=_empty)

    @classmethod
    def decode(cls, challenger: str, text: str) -> Self:
        """Return the set that `encode` has written as `text`; "" is the empty set."""
        if not text:
            return cls(challenger)
        data = zlib.decompress(base64.b64decode(text))
        return cls(challenger, np.frombuffer(data, np.uint8).copy())

    def encode(self) -> str:
        """Return the set as compressed text (base64)."""
        return base64.b64encode(zlib.compress(self._bits.tobytes())).decode()

    def __contains__(self, user: Key) -> bool:
        place, bit = self._place(user)
        return bool(self._bits[place] & bit)

    def add(self, user: Key) -> None:
        """Mark a user as counted."""
        place, bit = self._place(user)
        self._bits[place] |= bit

    def _place(self, user: Key) -> tuple[int, int]:
        slot = slot_of(user, self.challenger, _SLOTS)
        return slot // 8, 1 << slot % 8


class Sides(NamedTuple):
    """The two variants that are compared, and the challenger's share of users."""

    champion: str
    challenger: str
    share: float

    def of(self, user: Key) -> str:
        """Return the variant that a user belongs to."""
        return self.challenger if challenges(user, self.challenger, self.share) else self.champion


class Observation(NamedTuple):
    """A user's observation: `clicked` is the clicked share of the user's lists, all from the variant `line`."""

    user: Key
    line: str
    clicked: float


@dataclass
class _User:
    """A waiting user: the variant and time of the first list, the tokens of all lists, and the clicked lists."""

    line: str
    since: float
    lists: list[str] = field(default_factory=list)
    clicked: set[tuple[str, int]] = field(default_factory=set)


@dataclass
class UserClicks:
    """Collects the clicks of users until their observations can be made; kept in memory only.

    A user's lists of the first `seconds` count. `is_counted` tells whether a user was observed before. After a restart,
    waiting users start again with their next list. `secret` is the store's key secret.
    """

    sides: Sides
    seconds: float
    is_counted: Callable[[Key], bool]
    secret: str = ""
    _users: dict[Key, _User] = field(default_factory=dict, init=False)
    _lists: dict[str, list[ServedList]] = field(default_factory=dict, init=False)

    def show(self, lists: pa.Table) -> None:
        """Add the served lists of a file (`weir.contracts.served_lists.SERVED_SCHEMA`)."""
        for row in lists.filter(pc.is_valid(lists[columns.USER_KEY])).to_pylist():
            key = Key(row[columns.USER_KEY])
            at, line = row[columns.SERVED_AT].timestamp(), self.sides.of(key)
            if variant_of(row[columns.BUNDLE_VERSION]) != line:
                continue
            user = self._users.get(key)
            if user is None:
                if self.is_counted(key):
                    continue
                user = self._users[key] = _User(line, at)
            if at <= user.since + self.seconds:
                token = row[columns.ATTRIBUTION_TOKEN]
                items = hash_ids(pa.array(row[columns.ITEM_IDS], pa.string()), self.secret).tolist()
                user.lists.append(token)
                served = ServedList(row[columns.BUNDLE_VERSION], row[columns.QUERY], key, items)
                self._lists.setdefault(token, []).append(served)

    def join(self, clicks: Iterable[Click]) -> None:
        """Add the clicks on lists of waiting users."""
        for click in clicks:
            served = joined_list(self._lists.get(click.token, ()), click.user, click.item)
            if served is not None:
                self._users[Key(click.user)].clicked.add((click.token, served.query))

    def settled(self, now: float) -> list[Observation]:
        """Return the observations of the users whose time is over, and drop these users."""
        over = [key for key, user in self._users.items() if now > user.since + 2 * self.seconds]
        return list(self._observed(over))

    def _observed(self, keys: Iterable[Key]) -> Iterator[Observation]:
        for key in keys:
            user = self._users.pop(key)
            for token in user.lists:
                self._lists.pop(token, None)
            yield Observation(key, user.line, len(user.clicked) / len(user.lists))


@dataclass
class PairedHits:
    """The hits (champion, challenger) of each user's events, and the events skipped, by reason."""

    hits: dict[int, list[tuple[bool, bool]]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)

    def means(self) -> npt.NDArray[np.float64]:
        """Return each user's mean hits with champion and challenger, (users, 2)."""
        means = [np.mean(hits, axis=0) for hits in self.hits.values()]
        return np.array(means, np.float64).reshape(-1, 2)


def ask_both(
    client: RetrievalClient,
    examples: Sequence[Example],
    k: int,
    *,
    batch: int,
    pair: Callable[[], Pair | str],
) -> PairedHits:
    """Ask champion and challenger about the examples, `batch` per request, with seen items left out.

    `pair` returns the versions to ask, or the reason why answers do not count; it is called for every batch, because
    bundles may be swapped. Examples are skipped if a bundle is swapped between the two requests. Raises
    `RetrievalError`.
    """
    results = PairedHits()
    for start in range(0, len(examples), batch):
        some = examples[start : start + batch]
        versions = pair()
        answers = versions if isinstance(versions, str) else _answers(client, some, k, versions)
        if isinstance(answers, str):
            results.skipped[answers] += len(some)
            continue
        for example, champion, challenger in zip(some, *answers, strict=True):
            both = example.item in champion, example.item in challenger
            results.hits.setdefault(example.user, []).append(both)
    return results


def _answers(client: RetrievalClient, some: Sequence[Example], k: int, pair: Pair) -> list[list[list[str]]] | str:
    """Return the items that each version of the pair answers for each example; ``swapped`` if one is not loaded."""
    queries = [by_history(example.history, k, features=example.features) for example in some]
    try:
        answers = [client.retrieve(queries, exclude_seen=True, probe=True, bundle_version=version) for version in pair]
    except RetrievalError as error:
        if error.reason != BundleVersionNotLoadedError.reason:
            raise
        return "swapped"
    return [[hits.item_ids for hits in answer.hits] for answer in answers]


@dataclass(frozen=True)
class Contest:
    """The settings of a comparison: the `names` of all variants, and the challenger's share of users."""

    names: Sequence[str] = ()
    share: float = 0.5


@dataclass
class Comparing:
    """Keeps the comparison of champion and challenger in the store, and shows it in `metrics`; used by one thread."""

    store: Store
    config: MonitorConfig
    contest: Contest
    metrics: VariantMetrics
    _comparison: Comparison | None = field(default=None, init=False)
    _counted: CountedUsers | None = field(default=None, init=False)
    _once: LogOnce = field(default_factory=lambda: LogOnce(log, (RetrievalError,)), init=False)

    @property
    def sides(self) -> Sides | None:
        """Champion and challenger; None without a challenger."""
        comparison = self._opened()
        if comparison is None:
            return None
        return Sides(comparison.champion, comparison.challenger, self.contest.share)

    def is_counted(self, user: Key) -> bool:
        """Return whether a user was counted in the current comparison."""
        return self._counted is not None and user in self._counted

    def measure(
        self,
        manifest: WindowManifest,
        examples: Sequence[Example],
        *,
        commit: CommitRef | None,
        client: RetrievalClient,
        batch: Callable[[Info], int],
        unseen_by: Callable[[str], str | None],
    ) -> None:
        """Add the recall of both sides on a window's examples, unless the window was counted; raises `RetrievalError`.

        `commit` is the window's commit. `batch` returns the number of queries per request, and `unseen_by` the reason
        why answers of a bundle version do not count, or None.
        """
        comparison = self._opened()
        if comparison is None or manifest.sequence <= comparison.sequence or not examples:
            return

        def pair() -> Pair | str:
            loaded = dict(info.loaded) if (info := client.info()) else {}
            versions = loaded.get(comparison.champion), loaded.get(comparison.challenger)
            if None in versions:
                return "not_loaded"
            return unseen_by(str(versions[0])) or unseen_by(str(versions[1])) or (str(versions[0]), str(versions[1]))

        hits = ask_both(client, examples, comparison.k, batch=batch(client.info()), pair=pair)
        self._keep(_with_hits(comparison, manifest.sequence, commit, hits))

    def count(self, observations: Sequence[Observation]) -> None:
        """Add observations of clicks, except for users who were counted before."""
        comparison, counted = self._opened(), self._counted
        if comparison is None or counted is None or not observations:
            return
        clicks = dict(comparison.clicks)
        for line in (comparison.champion, comparison.challenger):
            new = [seen.clicked for seen in observations if seen.line == line and seen.user not in counted]
            clicks[line] = clicks.get(line, Running()).add(new)
        for seen in observations:
            counted.add(seen.user)
        self._keep(comparison.model_copy(update={"clicks": clicks, "counted": counted.encode()}))

    def _keep(self, comparison: Comparison) -> None:
        """Store and show a comparison, and log each verdict that has changed."""
        before, self._comparison = self._comparison, comparison
        comparison.write(self.store)
        self.metrics.show(comparison)
        for measure in MEASURES:
            if before is None or before.measured(measure).word != comparison.measured(measure).word:
                log.info("%s", comparison.sentence(measure))

    def _opened(self) -> Comparison | None:
        """Return the comparison of the current roles: from memory, the store, or new; None without a challenger."""
        try:
            roles = roles_in(self.store, self.contest.names) if self.contest.names else None
            self._once.succeeded()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the roles, the monitor continues
            self._once.failed(error, "nothing is compared")
            return None
        if roles is None or roles.challenger is None:
            if self._comparison is not None:
                self.metrics.clear()
            self._comparison = None
            return None
        present = self._comparison
        if present is None or (present.champion, present.challenger) != roles:
            self._comparison = present = self._stored(roles.champion, roles.challenger)
            self._counted = CountedUsers.decode(roles.challenger, present.counted)
            self.metrics.show(present)
        return present

    def _stored(self, champion: str, challenger: str) -> Comparison:
        """Return the stored comparison if it is of this champion and the settings' k, else a new one.

        Its alpha is that of the settings.
        """
        cutoffs, alpha = sorted(self.config.k), self.config.compare_alpha
        k = cutoffs[len(cutoffs) // 2]
        try:
            stored = Comparison.read(self.store, challenger)
            if stored is not None:
                where = f"the comparison of {challenger}"
                CommitLog(self.store).require(where, stored.sequence, stored.commit)
        except (CorruptArtefactError, LogMismatchError) as error:
            log.error("the comparison starts again: %s", error)
            stored = None
        if stored is not None and (stored.champion, stored.k) == (champion, k):
            return stored.model_copy(update={"alpha": alpha})
        return Comparison(champion=champion, challenger=challenger, alpha=alpha, k=k, started_at=time.time())


def _with_hits(comparison: Comparison, sequence: int, commit: CommitRef | None, found: PairedHits) -> Comparison:
    """Return a comparison to which the hits of the window `sequence` are added."""
    means = found.means()
    hits = dict(comparison.hits)
    for side, line in enumerate((comparison.champion, comparison.challenger)):
        hits[line] = hits.get(line, Running()).add(means[:, side])
    return comparison.model_copy(
        update={
            "sequence": sequence,
            "commit": commit,
            "windows": comparison.windows + bool(len(means)),
            "hits": hits,
            "differences": comparison.differences.add((np.subtract(means[:, 1], means[:, 0]) + 1) / 2),
            "skipped": _summed(comparison.skipped, found.skipped),
        }
    )


def _summed(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}
