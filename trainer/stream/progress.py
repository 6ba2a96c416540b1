"""Progress reports and summary of a training run."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import Field

from weir.contracts import BundleManifest, Store
from weir.contracts.base.models import FrozenModel
from weir.sketches import FrequencyEstimator
from weir.trainer.items.table import RowChanges
from weir.trainer.state.progress import Evaluation, mean_metrics, save
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import StepResult
from weir.trainer.stream.metrics import TrainerMetrics

__all__ = ["ProgressObserver", "TrainProgress", "TrainSummary"]

logger = logging.getLogger(__name__)

_STEPS_BETWEEN_REPORTS = 50


class TrainProgress(FrozenModel):
    """Progress of a run, reported at the start and the end of a window and every 50 steps in between."""

    window: str
    sequence: int
    batch: int = Field(description="finished batches of the window")
    batches: int = Field(description="all batches of the window")
    step: int = Field(description="steps since training started, restarts included")
    examples: int = Field(description="examples trained on in this run")
    loss: float | None = Field(description="mean loss of the newest step; none before the first of this run")
    evaluation: Evaluation | None = Field(description="of the newest window evaluated in this run")


class TrainSummary(FrozenModel):
    """Summary of a run, from its start (or restart) to its end."""

    windows: int = Field(description="windows trained on completely")
    examples: int = Field(description="positive examples trained on")
    unadmitted: int = Field(description="examples skipped because their item has no row")
    steps: int = Field(description="steps since training started, restarts included")
    seconds: float
    evaluation: dict[str, float] = Field(description="means over the newest windows, recall@20 and so on")
    bundle: str | None = Field(description="version of the newest bundle exported, if any")
    verdict: str | None = Field(description="the gate's verdict on it")
    stopped: bool = Field(description="whether a signal ended the run")


@dataclass
class ProgressObserver:
    """Counts the events of a run; on rank 0 (`is_first`) also updates metrics and the store, and calls `report`."""

    store: Store
    metrics: TrainerMetrics
    is_first: bool
    report: Callable[[TrainProgress], None] | None = None
    windows: int = 0
    examples: int = 0
    unadmitted: int = 0
    loss: float | None = None
    evaluation: Evaluation | None = None
    _window: dict[str, object] = field(default_factory=dict)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Store and export a window's evaluation."""
        self.evaluation = evaluation
        if self.is_first:
            save(self.store, evaluation)
            self.metrics.evaluated(evaluation)

    def ingested(self, changes: RowChanges, rows: int, unadmitted: int, exposed: int) -> None:
        """Count a window's changes to the item table, and the items shown beside its positives."""
        self.unadmitted += unadmitted
        self.metrics.ingested(changes, rows, unadmitted, exposed)

    def frequencies_updated(self, frequencies: FrequencyEstimator | None, events: int) -> None:
        """Set the metrics of the frequencies behind log Q, after `events` more events."""
        if self.is_first and frequencies is not None:
            self.metrics.frequencies_updated(frequencies, events)

    def window_started(self, window: str, sequence: int, batches: int, batch: int, step: int) -> None:
        """Report that training on a window starts or continues."""
        self._window = {"window": window, "sequence": sequence, "batches": batches}
        self._report(batch, step)

    def stepped(self, result: StepResult, examples: int, batch: int, step: int) -> None:
        """Count a step on `examples` rows; report every 50th."""
        if result.refused:
            logger.warning("step %d is refused: loss %s, gradients of norm %s", step, result.loss, result.norm)
        else:
            self.examples += examples
            self.loss = result.loss
        self.metrics.stepped(result, examples)
        if step % _STEPS_BETWEEN_REPORTS == 0:
            self._report(batch, step)

    def ranks_stepped(self, nodes: Sequence[str], seconds: Sequence[float]) -> None:
        """Export the mean step time of each rank, and its node."""
        if self.is_first:
            self.metrics.ranks_stepped(nodes, seconds)

    def window_trained(self, sequence: int, batches: int, step: int) -> None:
        """Report that training on a window is finished."""
        self.windows += 1
        self.metrics.window_trained(sequence)
        logger.info("window %s trained, step %d, loss %s", self._window["window"], step, self.loss)
        self._report(batches, step)

    def summary(
        self, state: TrainerState, bundle: BundleManifest | None, seconds: float, *, stopped: bool
    ) -> TrainSummary:
        """Return the summary of a run that ends in this state, with its newest bundle."""
        return TrainSummary(
            windows=self.windows,
            examples=self.examples,
            unadmitted=self.unadmitted,
            steps=state.position.step,
            seconds=seconds,
            evaluation=mean_metrics(state.recent),
            bundle=bundle.version if bundle else None,
            verdict=bundle.verdict if bundle else None,
            stopped=stopped,
        )

    def _report(self, batch: int, step: int) -> None:
        """Call `report` on rank 0."""
        if self.is_first and self.report is not None:
            facts = {"examples": self.examples, "loss": self.loss, "evaluation": self.evaluation}
            self.report(TrainProgress.model_validate({**self._window, "batch": batch, "step": step, **facts}))
