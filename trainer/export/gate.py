"""The promotion gate: which bundles may be served, and which promoted bundles are rolled back.

It compares the bundles of a line twice. Before a promotion, the candidate and the promoted bundle answer the newest
events; the candidate was trained on them, so a better result proves nothing, but a worse one does. Afterwards, the
promoted bundle and the last confirmed one are measured on events that neither was trained on. Between two lines it
decides by the monitor's comparison.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from weir.contracts.comparison import Comparison, Measure
from weir.contracts.models import StoredModel
from weir.trainer.config import TrainerConfig
from weir.trainer.export.cases import ENOUGH

__all__ = ["Evidence", "Gate", "PairedGate", "Verdict"]

_STANDARD_ERRORS: Final = 3.0
"""Standard errors by which the mean must be below 0: not fewer, as the normal approximation is optimistic."""


class Verdict(NamedTuple):
    """Decision on whether a bundle may be served, with the reason in a sentence."""

    promoted: bool
    sentence: str


class Evidence(StoredModel):
    """Counts of how often two bundles had the next item among their first k, on the same events."""

    cases: int = Field(default=0, ge=0)
    both: int = Field(default=0, ge=0, description="cases in which both had it")
    new_only: int = Field(default=0, ge=0)
    old_only: int = Field(default=0, ge=0)

    @classmethod
    def of(cls, new: npt.NDArray[np.bool_], old: npt.NDArray[np.bool_]) -> Self:
        """Count the hits (n,) of the new and the old bundle."""
        both, new_only, old_only = (int(hits.sum()) for hits in (new & old, new & ~old, old & ~new))
        return cls(cases=len(new), both=both, new_only=new_only, old_only=old_only)

    def __add__(self, other: "Evidence") -> "Evidence":
        """Pool two sets of cases."""
        return Evidence(
            cases=self.cases + other.cases,
            both=self.both + other.both,
            new_only=self.new_only + other.new_only,
            old_only=self.old_only + other.old_only,
        )


class Gate(Protocol):
    """A decision rule on evidence; it makes no decision on too few cases."""

    @property
    def cutoff(self) -> int:
        """The k at which hits are counted."""
        ...

    def before(self, fault: str | None, evidence: Evidence) -> Verdict:
        """Judge a candidate (new) against the promoted bundle; `fault` describes non-finite numbers, if any."""
        ...

    def after(self, evidence: Evidence) -> Verdict | None:
        """Judge the promoted bundle (new) against the last confirmed one; None while undecided."""
        ...

    def challenged(self, comparison: Comparison, measure: Measure) -> Verdict | None:
        """Judge a challenger (new line) against the champion; None while undecided."""
        ...


@dataclass(frozen=True)
class PairedGate:
    """Holds a bundle whose recall is significantly below (1 - tolerance) times the other's.

    With h and g the hits of the new and the old bundle on the same case and a = 1 - tolerance, x = h - a g has a mean
    below 0 if the new recall is below a times the old one. The bundle fails if the mean of x is more than three
    of its standard errors below 0.

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
        """Hold a bundle with non-finite numbers, or whose recall has dropped."""
        if fault is not None:
            return Verdict(promoted=False, sentence=f"held: {fault}")
        if evidence.cases < ENOUGH:
            return Verdict(promoted=True, sentence=f"promoted: {evidence.cases} cases, {ENOUGH} are compared")
        if self._fails(evidence):
            return Verdict(promoted=False, sentence=f"held: {self._comparison(evidence, 'the current bundle')}")
        return Verdict(promoted=True, sentence=f"promoted: {self._comparison(evidence, 'the current bundle')}")

    def after(self, evidence: Evidence) -> Verdict | None:
        """Confirm the promoted bundle, or roll it back."""
        if evidence.cases < ENOUGH:
            return None
        fails, comparison = self._fails(evidence), self._comparison(evidence, "the bundle before")
        return Verdict(not fails, f"{'rolled back' if fails else 'confirmed'}: {comparison} that neither had seen")

    def challenged(self, comparison: Comparison, measure: Measure) -> Verdict | None:
        """Promote a challenger that is better, by a test that is valid at any time (`weir.contracts.confidence`)."""
        word = comparison.measured(measure).word
        return None if word == "not yet" else Verdict(word == "better", comparison.sentence(measure))

    def _fails(self, evidence: Evidence) -> bool:
        n, kept = evidence.cases, 1 - self.tolerance
        counted = ((evidence.both, 1 - kept), (evidence.new_only, 1.0), (evidence.old_only, -kept))
        mean = sum(count * value for count, value in counted) / n
        variance = sum(count * value * value for count, value in counted) / n - mean * mean
        return mean + _STANDARD_ERRORS * math.sqrt(max(variance, 0.0) / n) < 0

    def _comparison(self, evidence: Evidence, other: str) -> str:
        new, old = ((evidence.both + only) / evidence.cases for only in (evidence.new_only, evidence.old_only))
        return (
            f"recall@{self.cutoff} is {new:.4f}, of {other} {old:.4f}, tolerance {self.tolerance:g}, "
            f"on {evidence.cases} cases"
        )
