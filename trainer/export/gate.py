"""The gate, which decides whether a bundle may be served, in three places.

Before a promotion, the candidate and the promoted bundle answer the newest events (`Gate.before`). The candidate was
trained on these events, so a better result proves nothing, but a worse result does.

After a promotion, the canary evaluation measures the promoted bundle and the last confirmed bundle on events that
neither was trained on (`CanaryReview`): each window is used before training on it. Windows with few events are pooled,
over several promotions if necessary, until there is enough evidence. Then the promoted bundle is confirmed, or all
bundles promoted since the last confirmation are withdrawn and the confirmed bundle is served again.
``bundles/TRIAL.json`` holds the evidence, so that a restarted run continues; training never reads it.

A variant is promoted to champion by the monitor's comparison of variant and champion (`PromotionCheck`).
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from weir.contracts import BundleLog, BundleManifest, CorruptArtefactError, Store, WindowManifest, Withdrawal
from weir.contracts.base.models import StoredModel
from weir.contracts.bundles.variants import Champion, Comparison, Measure, crown, log_of
from weir.contracts.storage.documents import Document, read_document, write_document
from weir.trainer.export.servable import ENOUGH, Cases, Servable
from weir.trainer.settings.trainer import TrainerConfig

__all__ = [
    "CanaryEvaluation",
    "CanaryReview",
    "Evidence",
    "Gate",
    "PairedGate",
    "PromotionCheck",
    "Verdict",
    "current_or_none",
]

logger = logging.getLogger(__name__)


_STANDARD_ERRORS: Final = 3.0
"""Standard errors by which the mean must be below 0: not fewer, as the normal approximation is optimistic."""


_CANARY: Final = "bundles/TRIAL.json"

_SECONDS_BETWEEN_LOOKS: Final = 5.0
"""Seconds between two reads of the monitor's comparison."""


class Verdict(NamedTuple):
    """Decision on whether a bundle may be served, with the reason in a sentence."""

    promoted: bool
    sentence: str


class Evidence(StoredModel):
    """Hits of two bundles, new and old, on the same events: how often the next item was among the first k results."""

    cases: int = Field(default=0, ge=0)
    both: int = Field(default=0, ge=0, description="cases in which both had it")
    new_only: int = Field(default=0, ge=0)
    old_only: int = Field(default=0, ge=0)

    @classmethod
    def of(cls, new: npt.NDArray[np.bool_], old: npt.NDArray[np.bool_]) -> Self:
        """Return the counts of the hits (n,) of the new and the old bundle."""
        both, new_only, old_only = (int(hits.sum()) for hits in (new & old, new & ~old, old & ~new))
        return cls(cases=len(new), both=both, new_only=new_only, old_only=old_only)

    def __add__(self, other: "Evidence") -> "Evidence":
        """Return the evidence of two sets of cases together."""
        return Evidence(
            cases=self.cases + other.cases,
            both=self.both + other.both,
            new_only=self.new_only + other.new_only,
            old_only=self.old_only + other.old_only,
        )


class Gate(Protocol):
    """A decision rule on evidence."""

    @property
    def cutoff(self) -> int:
        """The k at which hits are counted."""
        ...

    def before(self, fault: str | None, evidence: Evidence) -> Verdict:
        """Decide whether to promote a candidate (new), compared with the promoted bundle (old).

        `fault` is a sentence about non-finite numbers in the candidate, or None.
        """
        ...

    def after(self, evidence: Evidence) -> Verdict | None:
        """Decide whether to keep the promoted bundle (new), compared with the confirmed one (old); None: undecided."""
        ...

    def challenged(self, comparison: Comparison, measure: Measure) -> Verdict | None:
        """Decide whether a variant replaces the champion, by a measure of their comparison; None: undecided."""
        ...


@dataclass(frozen=True)
class PairedGate:
    """The gate that rejects a bundle whose recall is significantly below (1 - tolerance) times the other bundle's.

    Let h and g be the hits (0 or 1) of the new and the old bundle on the same case, and a = 1 - tolerance. If the new
    recall is below a times the old recall, x = h - a g has a mean below 0. The new bundle fails if the mean of x is
    more than three of its standard errors below 0.

    Parameters
    ----------
    cutoff
        The k of the recall.
    tolerance
        Allowed relative loss: 0.5 lets recall fall to half.
    """

    cutoff: int
    tolerance: float

    @classmethod
    def of(cls, config: TrainerConfig) -> "PairedGate":
        """Return the gate of the settings: recall at the middle cut-off."""
        cutoffs = sorted(config.evaluation_k)
        return cls(cutoffs[len(cutoffs) // 2], config.gate_tolerance)

    def before(self, fault: str | None, evidence: Evidence) -> Verdict:
        """Reject a bundle with a `fault`, or one that fails the test; promote it without a test on too few cases."""
        if fault is not None:
            return Verdict(promoted=False, sentence=f"held: {fault}")
        if evidence.cases < ENOUGH:
            return Verdict(promoted=True, sentence=f"promoted: {evidence.cases} cases, {ENOUGH} are compared")
        if self._fails(evidence):
            return Verdict(promoted=False, sentence=f"held: {self._comparison(evidence, 'the current bundle')}")
        return Verdict(promoted=True, sentence=f"promoted: {self._comparison(evidence, 'the current bundle')}")

    def after(self, evidence: Evidence) -> Verdict | None:
        """Confirm the promoted bundle, or reject it if it fails the test; None on too few cases."""
        if evidence.cases < ENOUGH:
            return None
        fails, comparison = self._fails(evidence), self._comparison(evidence, "the bundle before")
        return Verdict(not fails, f"{'rolled back' if fails else 'confirmed'}: {comparison} that neither had seen")

    def challenged(self, comparison: Comparison, measure: Measure) -> Verdict | None:
        """Promote a better variant, by a test that is valid at any time (`weir.contracts.base.statistics`)."""
        word = comparison.measured(measure).word
        return None if word == "not yet" else Verdict(word == "better", comparison.sentence(measure))

    def _fails(self, evidence: Evidence) -> bool:
        """Return whether the new bundle fails the test: the mean of x is significantly below 0."""
        n, share = evidence.cases, 1 - self.tolerance
        counted = ((evidence.both, 1 - share), (evidence.new_only, 1.0), (evidence.old_only, -share))
        mean = sum(count * value for count, value in counted) / n
        variance = sum(count * value * value for count, value in counted) / n - mean * mean
        return mean + _STANDARD_ERRORS * math.sqrt(max(variance, 0.0) / n) < 0

    def _comparison(self, evidence: Evidence, other: str) -> str:
        """Return the recalls of the bundle and of the `other`, in words."""
        new, old = ((evidence.both + only) / evidence.cases for only in (evidence.new_only, evidence.old_only))
        return (
            f"recall@{self.cutoff} is {new:.4f}, of {other} {old:.4f}, tolerance {self.tolerance:g}, "
            f"on {evidence.cases} cases"
        )


class _Session(StoredModel):
    """Evidence from one window."""

    sequence: int = Field(description="number of the pane")
    promoted: str = Field(description="the bundle that was served at the time")
    evidence: Evidence


class CanaryEvaluation(Document):
    """``bundles/TRIAL.json``: the confirmed bundle (reference), and the evidence on bundles promoted since."""

    reference: str | None = None
    sessions: tuple[_Session, ...] = ()

    @classmethod
    def read(cls, store: Store) -> "CanaryEvaluation":
        """Return the stored evaluation; an empty one if the file is missing or damaged."""
        try:
            return read_document(store, _CANARY, cls)
        except FileNotFoundError:
            return cls()
        except CorruptArtefactError as error:
            logger.error("the canary evaluation of the promoted bundle starts again: %s", error)
            return cls()

    def write(self, store: Store) -> None:
        """Store the evaluation, unless it is unchanged."""
        if self != CanaryEvaluation.read(store):
            write_document(store, _CANARY, self)

    @property
    def evidence(self) -> Evidence:
        """Pooled evidence of all windows."""
        return reduce(add, (session.evidence for session in self.sessions), Evidence())


def current_or_none(log: BundleLog) -> str | None:
    """Return the promoted version; None if there is none, or if ``CURRENT`` is damaged, which is logged."""
    try:
        return log.current()
    except CorruptArtefactError as error:
        logger.error("the promoted bundle cannot be read: %s", error)
        return None


@dataclass(frozen=True)
class CanaryReview:
    """Tests the promoted bundle on each window; `opened` opens a bundle."""

    store: Store
    gate: Gate
    opened: Callable[[BundleLog, BundleManifest], Servable] = Servable.open

    def review(self, window: WindowManifest, cases: Cases) -> Withdrawal | None:
        """Test the promoted bundle on a window before training on it; return the withdrawal if it was rolled back.

        A window that is reviewed again counts once. Raises `CorruptArtefactError` for a damaged pin.
        """
        log = BundleLog(self.store)
        current, pin, canary = current_or_none(log), log.pin(), CanaryEvaluation.read(self.store)
        if current is None:
            return None
        if pin is not None or canary.reference is None or current == canary.reference:
            # A pinned bundle, and the very first one, are trusted without a test.
            CanaryEvaluation(reference=pin.version if pin else current).write(self.store)
            return None
        if (withdrawn := log.withdrawal(current)) is not None:
            # Killed before the fallback was promoted, or promoted by hand and unpinned again.
            log.publish(canary.reference)
            return withdrawn
        canary = self._with_evidence(log, canary, current, window, cases)
        canary.write(self.store)
        return self._decide(log, canary, current, window)

    def _with_evidence(
        self, log: BundleLog, canary: CanaryEvaluation, current: str, window: WindowManifest, cases: Cases
    ) -> CanaryEvaluation:
        """Return the evaluation with the evidence of a window, unless one of the bundles was trained on the window."""
        if not len(cases) or any(session.sequence == window.sequence for session in canary.sessions):
            return canary
        try:
            pair = [log.manifest(version) for version in (current, str(canary.reference))]
            if window.sequence <= max(manifest.trained_sequence for manifest in pair):
                return canary
            new, old = (self._hits(log, manifest, cases) for manifest in pair)
        except (CorruptArtefactError, FileNotFoundError) as error:
            logger.error("bundle %s cannot be tested against %s: %s", current, canary.reference, error)
            return CanaryEvaluation(reference=current)
        session = _Session(sequence=window.sequence, promoted=current, evidence=Evidence.of(new, old))
        return canary.model_copy(update={"sessions": (*canary.sessions, session)})

    def _hits(self, log: BundleLog, manifest: BundleManifest, cases: Cases) -> npt.NDArray[np.bool_]:
        """Return which cases (n,) a bundle hits."""
        return self.opened(log, manifest).hits(cases, self.gate.cutoff)

    def _decide(
        self, log: BundleLog, canary: CanaryEvaluation, current: str, window: WindowManifest
    ) -> Withdrawal | None:
        """Confirm the promoted bundle or roll back, if there is enough evidence; return the withdrawal, if any."""
        verdict = self.gate.after(canary.evidence)
        if verdict is None:
            return None
        if verdict.promoted:
            logger.info("bundle %s: %s", current, verdict.sentence)
            CanaryEvaluation(reference=current).write(self.store)
            return None
        return self._roll_back(log, canary, current, window, verdict.sentence)

    def _roll_back(
        self, log: BundleLog, canary: CanaryEvaluation, current: str, window: WindowManifest, sentence: str
    ) -> Withdrawal:
        """Withdraw all bundles promoted since the last confirmation, then promote the confirmed one."""
        withdrawal = Withdrawal(
            version=current,
            fallback=str(canary.reference),
            window=str(window.name),
            sequence=window.sequence,
            cases=canary.evidence.cases,
            at=time.time(),
            verdict=sentence,
        )
        suspects = {current, *(session.promoted for session in canary.sessions)} - {canary.reference}
        for version in sorted(suspects & set(log.versions())):
            log.withdraw(withdrawal.model_copy(update={"version": version}))
        log.publish(withdrawal.fallback)
        CanaryEvaluation(reference=canary.reference).write(self.store)
        return withdrawal


@dataclass
class PromotionCheck:
    """Promotes a `variant` in its own trainer once it has beaten the champion; not thread-safe."""

    store: Store
    config: TrainerConfig
    gate: Gate
    variant: str
    clock: Callable[[], float] = time.monotonic
    _next: float = field(default=-float("inf"), init=False)
    _said: str = field(default="", init=False)

    def decide(self) -> Champion | None:
        """Promote the variant if the gate decides so and no bundle is pinned; return the new champion, if any."""
        measure = self.config.promote_by
        if measure == "never" or self.clock() < self._next:
            return None
        self._next = self.clock() + _SECONDS_BETWEEN_LOOKS
        try:
            champion = self._decide(measure)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the store, training continues
            if str(error) != self._said:
                logger.error("cannot decide whether to promote %s: %s", self.variant, error)
            self._said = str(error)
            return None
        if champion is not None:
            logger.info("%s is served to all from now on: %s", champion.variant, champion.verdict)
        return champion

    def _decide(self, measure: Measure) -> Champion | None:
        """Return the new champion if the variant was promoted."""
        comparison, champion = Comparison.read(self.store, self.variant), Champion.read(self.store)
        if comparison is None or comparison.champion != champion.variant or self.variant in champion.beaten:
            return None
        verdict = self.gate.challenged(comparison, measure)
        if verdict is None or not verdict.promoted:
            return None
        if any(log_of(self.store, line).pin() for line in (champion.variant, self.variant)):
            return None
        return crown(self.store, self.variant, "the trainer", verdict.sentence)
