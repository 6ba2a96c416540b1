"""Variants: sets of trainer settings with bundles of their own on one stream, and their comparison.

The plain settings are the variant `MAIN`, whose bundles (its line) are in the store itself. Any other variant has a
store within it, ``variants/<name>/``, with its own checkpoints, bundles, ``CURRENT`` and ``PIN``; all variants share
the windows. The champion is served to all users except the challenger's; ``variants/CHAMPION.json`` names it unless it
is `MAIN`. Versions of a variant other than `MAIN` end in its name.

The monitor writes ``variants/<challenger>/COMPARISON.json``, counts and position together, as one file: every window
counts once, however often the monitor is restarted, and the intervals stay valid at every look.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, NamedTuple

import xxhash
from pydantic import Field

from weir.contracts.base.errors import UserError
from weir.contracts.base.keys import Key
from weir.contracts.base.models import CommitRef
from weir.contracts.base.statistics import Interval, Running
from weir.contracts.bundles.bundle_log import BundleLog
from weir.contracts.bundles.checkpoint import CHECKPOINT_MARK
from weir.contracts.storage.documents import Document, read_document, write_document
from weir.contracts.storage.store import Store

__all__ = [
    "CHAMPION",
    "MAIN",
    "MEASURES",
    "Champion",
    "Comparison",
    "Measure",
    "Measured",
    "Roles",
    "VariantError",
    "VariantName",
    "Word",
    "challenges",
    "champions_log",
    "crown",
    "line_of",
    "lines",
    "log_of",
    "log_of_version",
    "roles_in",
    "slot_of",
    "variant_of",
    "version_of",
]

MAIN: Final = "main"
"""The line of the plain settings."""
CHAMPION: Final = "variants/CHAMPION.json"
_MARK: Final = "--"
_RANGE: Final = 1 << 64
Measure = Literal["recall", "clicks"]
"""Measures of a comparison: recall as served, or the share of a user's lists that were clicked."""
MEASURES: Final[tuple[Measure, ...]] = ("recall", "clicks")
Word = Literal["better", "worse", "not yet"]
VariantName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=40)]


class Measured(NamedTuple):
    """Means of champion and challenger, and the interval of their difference, challenger less champion."""

    champion: float
    challenger: float
    interval: Interval
    units: int

    @property
    def word(self) -> Word:
        """Whether the challenger is better, worse, or not yet decided."""
        if self.interval.low > 0:
            return "better"
        return "worse" if self.interval.high < 0 else "not yet"


class Comparison(Document):
    """``COMPARISON.json``: what champion and challenger reached so far; at first, each interval is the whole range."""

    champion: str
    challenger: str
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    k: int = Field(default=20, ge=1, description="cut-off of recall")
    started_at: float = Field(default=0.0, description="wall clock, seconds since 1970")
    sequence: int = Field(default=-1, description="newest window that is counted, or was passed over")
    commit: CommitRef | None = Field(default=None, description="the commit of that window, where it is known")
    windows: int = Field(default=0, ge=0, description="windows that count")
    hits: Mapping[str, Running] = Field(
        default_factory=dict, description="by line: recall at k of each user within a window"
    )
    differences: Running = Field(
        default_factory=Running,
        description="challenger less champion of each user within a window, from -1 to 1 as 0 to 1",
    )
    skipped: Mapping[str, int] = Field(default_factory=dict, description="reason -> events that do not count")
    clicks: Mapping[str, Running] = Field(
        default_factory=dict, description="by line: share of lists clicked, each user once"
    )
    counted: str = Field(
        default="",
        description="slots of users whose clicks are counted: bits, zlib, base64; no key can be read from it",
    )

    @classmethod
    def read(cls, store: Store, challenger: str) -> "Comparison | None":
        """Return the stored comparison, or None; raises `CorruptArtefactError`."""
        try:
            return read_document(store, _path(challenger), cls)
        except FileNotFoundError:
            return None

    @classmethod
    def between(cls, store: Store, one: str, other: str) -> "Comparison | None":
        """Return the newest stored comparison of two variants, whichever was the challenger, or None.

        Raises `CorruptArtefactError`.
        """
        found = [made for name in (one, other) if (made := cls.read(store, name)) is not None]
        pairs = [made for made in found if {made.champion, made.challenger} == {one, other}]
        return max(pairs, key=lambda made: made.started_at, default=None)

    def write(self, store: Store) -> None:
        """Store the comparison."""
        write_document(store, _path(self.challenger), self)

    def measured(self, measure: Measure) -> Measured:
        """Return the comparison by a measure, at level 1 - `alpha` for each measure alone, at all looks together."""
        return self._of_recall() if measure == "recall" else self._of_clicks()

    def sentence(self, measure: Measure) -> str:
        """Return the verdict by a measure in a sentence."""
        found = self.measured(measure)
        what = f"recall@{self.k} as served" if measure == "recall" else "share of lists clicked"
        units = "users within a window" if measure == "recall" else "users"
        return (
            f"{found.word}: {what} of {self.challenger} is {found.challenger:.4f}, of {self.champion} "
            f"{found.champion:.4f}; the difference is from {found.interval.low:+.4f} to {found.interval.high:+.4f}, "
            f"at any look with probability {1 - self.alpha:g}, on {found.units:,} {units}"
        )

    def _of_recall(self) -> Measured:
        low, high = self.differences.interval(self.alpha)
        champion, challenger = (_mean_of(self.hits.get(line, Running())) for line in (self.champion, self.challenger))
        return Measured(champion, challenger, Interval(2 * low - 1, 2 * high - 1), self.differences.count)

    def _of_clicks(self) -> Measured:
        """Return the comparison by clicks; each side's interval gets half of alpha, so that both hold together."""
        champion, challenger = (self.clicks.get(line, Running()) for line in (self.champion, self.challenger))
        before, after = champion.interval(self.alpha / 2), challenger.interval(self.alpha / 2)
        difference = Interval(after.low - before.high, after.high - before.low)
        units = champion.count + challenger.count
        return Measured(_mean_of(champion), _mean_of(challenger), difference, units)


def _mean_of(side: Running) -> float:
    return side.mean if side.count else 0.0


def _path(challenger: str) -> str:
    return f"variants/{challenger}/COMPARISON.json"


class VariantError(UserError):
    """Settings and store disagree on the variants."""

    exit_status = 2


class Champion(Document):
    """``variants/CHAMPION.json``: the variant that is served to all, and the champions before it."""

    variant: str = MAIN
    beaten: tuple[str, ...] = Field(default=(), description="champions before it, which do not challenge it again")
    by: str = Field(default="", description="who promoted it: an operator, or the trainer by the verdict")
    at: float = Field(default=0.0, description="wall clock, seconds since 1970")
    verdict: str = Field(default="", description="what the comparison said, in a sentence")

    @classmethod
    def read(cls, store: Store) -> "Champion":
        """Return the stored champion, `MAIN` if there is none; raises `CorruptArtefactError`."""
        try:
            return read_document(store, CHAMPION, cls)
        except FileNotFoundError:
            return cls()


class Roles(NamedTuple):
    """The champion, the variant served to most users, and its challenger, if any."""

    champion: str = MAIN
    challenger: str | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """The variants that have a role, the champion first."""
        return (self.champion,) if self.challenger is None else (self.champion, self.challenger)


def roles_in(store: Store, names: Iterable[str]) -> Roles:
    """Return the champion and its challenger, given the `names` of all variants in the settings.

    Raises `VariantError` if the champion has no settings, or several variants could challenge it, and
    `CorruptArtefactError` if ``CHAMPION.json`` is damaged.
    """
    champion, known = Champion.read(store), (MAIN, *names)
    if champion.variant not in known:
        raise VariantError(
            f"{store.path(CHAMPION)}: {champion.variant} is served to all, but trainer.variants has no such variant: "
            f"add it, or `weir promote --variant {MAIN}`"
        )
    others = [name for name in known if name not in {champion.variant, *champion.beaten}]
    if len(others) > 1:
        raise VariantError(
            f"trainer.variants: {' and '.join(others)} could all challenge {champion.variant}; one at a time may: "
            "leave out the others"
        )
    return Roles(champion.variant, others[0] if others else None)


def crown(store: Store, variant: str, by: str, verdict: str) -> Champion:
    """Make a variant the champion, served to all; the champion before it does not challenge it again.

    Raises `VariantError` if the variant has no promoted bundle, and `CorruptArtefactError` if ``CHAMPION.json`` or the
    variant's ``CURRENT`` is damaged.
    """
    before = Champion.read(store)
    if before.variant == variant:
        return before
    if log_of(store, variant).current() is None:
        raise VariantError(f"{line_of(store, variant).path('bundles')}: holds no promoted bundle of {variant}")
    beaten = tuple(sorted({*before.beaten, before.variant} - {variant}))
    champion = Champion(variant=variant, beaten=beaten, by=by, at=time.time(), verdict=verdict)
    write_document(store, CHAMPION, champion)
    return champion


def line_of(store: Store, variant: str) -> Store:
    """Return the store with the checkpoints and bundles of a variant: for `MAIN` the `store` itself."""
    return store if variant == MAIN else Store(f"{store.url.rstrip('/')}/variants/{variant}")


def lines(store: Store) -> list[str]:
    """Return the variants that have files in the store, with or without settings, `MAIN` first."""
    there = ("variants/*/bundles/CURRENT", f"variants/*/checkpoints/*/{CHECKPOINT_MARK}")
    return [MAIN, *sorted({name.split("/")[1] for pattern in there for name in store.glob(pattern)})]


def log_of(store: Store, variant: str) -> BundleLog:
    """Return the bundles of a variant."""
    return BundleLog(line_of(store, variant), root=store)


def champions_log(store: Store) -> BundleLog:
    """Return the bundles of the champion; raises `CorruptArtefactError`."""
    return log_of(store, Champion.read(store).variant)


def log_of_version(store: Store, version: str) -> BundleLog:
    """Return the bundles of the variant that a version belongs to."""
    return log_of(store, variant_of(version))


def version_of(version: str, variant: str) -> str:
    """Return a version with the name of its variant appended, so that no two variants share a version."""
    return version if variant == MAIN else f"{version}{_MARK}{variant}"


def variant_of(version: str) -> str:
    """Return the variant that a version belongs to."""
    return version.partition(_MARK)[2] or MAIN


def challenges(user: Key, challenger: str, share: float) -> bool:
    """Return whether the challenger, with a `share` of all users, serves this one; the choice is stable.

    ``xxh3_64`` of the challenger's name and the key decides, independently of other hashes of the key and of earlier
    challengers. A larger share keeps the users of a smaller one.
    """
    return _hashed(user, f"variant {challenger}") < share * _RANGE


def slot_of(user: Key, challenger: str, slots: int) -> int:
    """Hash a user to a number below `slots`: the bit that marks the user as counted in a comparison.

    The hash is unrelated to that of `challenges`, which chooses the users of the challenger.
    """
    return _hashed(user, f"slot {challenger}") % slots


def _hashed(user: Key, salt: str) -> int:
    return int(xxhash.xxh3_64_intdigest(f"{salt}/{int(user)}".encode()))
