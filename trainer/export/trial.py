"""Trial of the promoted bundle: compared with the last confirmed one, on windows that neither was trained on.

A window tests the model before it is trained on; the served bundles are tested at the same time. Windows with few
events are pooled, over several promotions if necessary, until there is enough evidence: then the promoted bundle is
confirmed, or everything promoted since the last confirmation is withdrawn and the confirmed one served again.
``bundles/TRIAL.json`` holds the evidence, so a restart continues where a killed run stopped; training never
reads it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from weir.contracts import BundleLog, BundleManifest, CorruptArtefactError, Store, WindowManifest, Withdrawal
from weir.contracts.documents import Document, read_document, write_document
from weir.contracts.models import StoredModel
from weir.trainer.export.cases import Cases
from weir.trainer.export.gate import Evidence, Gate
from weir.trainer.export.servable import Servable

__all__ = ["Trial", "Trials", "current_or_none"]

logger = logging.getLogger(__name__)

_TRIAL: Final = "bundles/TRIAL.json"


class _Session(StoredModel):
    """Evidence from one window."""

    sequence: int = Field(description="number of the pane")
    promoted: str = Field(description="the bundle that was served at the time")
    evidence: Evidence


class Trial(Document):
    """``bundles/TRIAL.json``: the reference bundle, and the evidence since it was confirmed."""

    reference: str | None = None
    sessions: tuple[_Session, ...] = ()

    @classmethod
    def read(cls, store: Store) -> "Trial":
        """Return the stored trial; an empty one if it is missing or damaged."""
        try:
            return read_document(store, _TRIAL, cls)
        except FileNotFoundError:
            return cls()
        except CorruptArtefactError as error:
            logger.error("the trial of the promoted bundle starts again: %s", error)
            return cls()

    def write(self, store: Store) -> None:
        """Store the trial, unless it is unchanged."""
        if self != Trial.read(store):
            write_document(store, _TRIAL, self)

    @property
    def evidence(self) -> Evidence:
        """Pooled evidence of all windows."""
        return reduce(add, (session.evidence for session in self.sessions), Evidence())


def current_or_none(log: BundleLog) -> str | None:
    """Return the promoted version; None if there is none, or if ``CURRENT`` is damaged, which is logged."""
    try:
        return log.current()
    except CorruptArtefactError as error:
        logger.error("it is not known which bundle is promoted: %s", error)
        return None


@dataclass(frozen=True)
class Trials:
    """Reviews the promoted bundle on each window."""

    store: Store
    gate: Gate
    opened: Callable[[BundleLog, BundleManifest], Servable] = Servable.open

    def review(self, window: WindowManifest, cases: Cases) -> Withdrawal | None:
        """Test the promoted bundle on a window before training on it; return the withdrawal if it was rolled back.

        A window counts once, even if reviewed again. Raises `CorruptArtefactError` for a damaged pin.
        """
        log = BundleLog(self.store)
        current, pin, trial = current_or_none(log), log.pin(), Trial.read(self.store)
        if current is None:
            return None
        if pin is not None or trial.reference is None or current == trial.reference:
            # A pinned bundle, and the very first one, are trusted without a test.
            Trial(reference=pin.version if pin else current).write(self.store)
            return None
        if (withdrawn := log.withdrawal(current)) is not None:
            # Killed before the fallback was promoted, or promoted by hand and unpinned again.
            log.publish(trial.reference)
            return withdrawn
        trial = self._with(log, trial, current, window, cases)
        trial.write(self.store)
        return self._decide(log, trial, current, window)

    def _with(self, log: BundleLog, trial: Trial, current: str, window: WindowManifest, cases: Cases) -> Trial:
        """Add the evidence of a window, unless it was added or one of the two bundles was trained on it."""
        if not len(cases) or any(session.sequence == window.sequence for session in trial.sessions):
            return trial
        try:
            pair = [log.manifest(version) for version in (current, str(trial.reference))]
            if window.sequence <= max(manifest.trained_sequence for manifest in pair):
                return trial
            new, old = (self._hits(log, manifest, cases) for manifest in pair)
        except (CorruptArtefactError, FileNotFoundError) as error:
            logger.error("bundle %s cannot be tested against %s: %s", current, trial.reference, error)
            return Trial(reference=current)
        session = _Session(sequence=window.sequence, promoted=current, evidence=Evidence.of(new, old))
        return trial.model_copy(update={"sessions": (*trial.sessions, session)})

    def _hits(self, log: BundleLog, manifest: BundleManifest, cases: Cases) -> npt.NDArray[np.bool_]:
        return self.opened(log, manifest).hits(cases, self.gate.cutoff)

    def _decide(self, log: BundleLog, trial: Trial, current: str, window: WindowManifest) -> Withdrawal | None:
        verdict = self.gate.after(trial.evidence)
        if verdict is None:
            return None
        if verdict.promoted:
            logger.info("bundle %s: %s", current, verdict.sentence)
            Trial(reference=current).write(self.store)
            return None
        return self._roll_back(log, trial, current, window, verdict.sentence)

    def _roll_back(
        self, log: BundleLog, trial: Trial, current: str, window: WindowManifest, sentence: str
    ) -> Withdrawal:
        """Withdraw all bundles promoted since the last confirmation, then promote the confirmed one."""
        withdrawal = Withdrawal(
            version=current,
            fallback=str(trial.reference),
            window=str(window.name),
            sequence=window.sequence,
            cases=trial.evidence.cases,
            at=time.time(),
            verdict=sentence,
        )
        suspects = {current, *(session.promoted for session in trial.sessions)} - {trial.reference}
        for version in sorted(suspects & set(log.versions())):
            log.withdraw(withdrawal.model_copy(update={"version": version}))
        log.publish(withdrawal.fallback)
        Trial(reference=trial.reference).write(self.store)
        return withdrawal
