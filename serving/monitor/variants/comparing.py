"""Counts how the challenger compares with the champion, in ``variants/<challenger>/COMPARISON.json``.

What cannot be compared is passed over and counted; nothing here stops the monitor from measuring what is served.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weir.contracts import CommitLog, CorruptArtefactError, Key, Store, WindowManifest
from weir.contracts.commit import CommitRef
from weir.contracts.commits import LogMismatchError
from weir.contracts.comparison import MEASURES, Comparison
from weir.contracts.confidence import Running
from weir.contracts.variants import roles_in
from weir.serving.client import Info, RetrievalClient
from weir.serving.monitor.config import MonitorConfig
from weir.serving.monitor.recall import Example
from weir.serving.monitor.variants.clicks import Observation, Sides
from weir.serving.monitor.variants.counted import CountedUsers
from weir.serving.monitor.variants.metrics import VariantMetrics
from weir.serving.monitor.variants.paired import Pair, PairedHits, ask_both
from weir.serving.problems import Problems

__all__ = ["Comparing", "Contest"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contest:
    """The variants that there are beside the plain settings, and the share of users that a challenger gets."""

    names: Sequence[str] = ()
    share: float = 0.5


@dataclass
class Comparing:
    """The comparison in course; one thread calls it. `metrics` show it."""

    store: Store
    config: MonitorConfig
    contest: Contest
    metrics: VariantMetrics
    _comparison: Comparison | None = field(default=None, init=False)
    _counted: CountedUsers | None = field(default=None, init=False)
    _problems: Problems = field(default_factory=lambda: Problems(log), init=False)

    @property
    def sides(self) -> Sides | None:
        """Who is compared; None while nobody challenges."""
        comparison = self._opened()
        if comparison is None:
            return None
        return Sides(comparison.champion, comparison.challenger, self.contest.share)

    def is_counted(self, user: Key) -> bool:
        """Say whether a user's clicks have been counted."""
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
        """Compare on the events of a window, unless it has been counted; raises `RetrievalError`.

        `commit` is the one of the window. `batch` says how many queries to put into a request, and `unseen_by` why
        answers of a bundle do not count.
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

        found = ask_both(client, examples, comparison.k, batch=batch(client.info()), pair=pair)
        self._keep(_with_hits(comparison, manifest.sequence, commit, found))

    def count(self, observations: Sequence[Observation]) -> None:
        """Count the clicks of users."""
        comparison, counted = self._opened(), self._counted
        if comparison is None or counted is None or not observations:
            return
        clicks = dict(comparison.clicks)
        for line in (comparison.champion, comparison.challenger):
            new = [one.clicked for one in observations if one.line == line and one.user not in counted]
            clicks[line] = clicks.get(line, Running()).add(new)
        for one in observations:
            counted.add(one.user)
        self._keep(comparison.model_copy(update={"clicks": clicks, "counted": counted.encode()}))

    def _keep(self, comparison: Comparison) -> None:
        """Store a comparison, show it, and log each verdict that has changed."""
        before, self._comparison = self._comparison, comparison
        comparison.write(self.store)
        self.metrics.show(comparison)
        for measure in MEASURES:
            if before is None or before.measured(measure).word != comparison.measured(measure).word:
                log.info("%s", comparison.sentence(measure))

    def _opened(self) -> Comparison | None:
        """Return the comparison of the present roles: the one in memory, the stored one, or a new one."""
        try:
            roles = roles_in(self.store, self.contest.names) if self.contest.names else None
            self._problems.over()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the roles, the monitor goes on
            self._problems.report(error, "nothing is compared")
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
        """Return what is stored of two lines, with the level of the settings; a new comparison where it is another."""
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
    """Return a comparison with the hits of a window."""
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
