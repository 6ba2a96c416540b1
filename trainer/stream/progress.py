"""What a run tells while it goes and when it ends."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import Field

from contracts import Store
from contracts.models import FrozenModel
from sketches import FrequencyEstimator
from trainer.items.table import RowChanges
from trainer.state.evaluation import Evaluation, save
from trainer.step.step import StepResult
from trainer.stream.metrics import TrainerMetrics

__all__ = ["Observer", "TrainProgress", "TrainSummary"]

logger = logging.getLogger(__name__)

_STEPS_BETWEEN_REPORTS = 50


class TrainProgress(FrozenModel):
    """Where a run stands; one comes at the beginning and the end of a window and every 50 steps within."""

    window: str
    sequence: int
    batch: int = Field(description="batches of the window done")
    batches: int = Field(description="batches of the window in all")
    step: int = Field(description="steps since the beginning of training, restarts included")
    examples: int = Field(description="examples learnt in this run")
    loss: float | None = Field(description="mean loss of the newest step; none before the first of this run")
    evaluation: Evaluation | None = Field(description="of the newest window evaluated in this run")


class TrainSummary(FrozenModel):
    """What a run did, from its start (or restart) to its end."""

    windows: int = Field(description="windows learnt completely")
    examples: int = Field(description="positive examples learnt from")
    unadmitted: int = Field(description="examples left out because their item has no row")
    steps: int = Field(description="steps since the beginning of training, restarts included")
    seconds: float
    evaluation: dict[str, float] = Field(description="means over the newest windows, recall@20 and so on")
    bundle: str | None = Field(description="version of the newest bundle exported, if any")
    verdict: str | None = Field(description="what the gate said of it")
    stopped: bool = Field(description="whether a signal ended the run")


@dataclass
class Observer:
    """Counts what a run does, and on rank 0 (`speaks`) tells metrics, the store and the caller."""

    store: Store
    metrics: TrainerMetrics
    speaks: bool
    report: Callable[[TrainProgress], None] | None = None
    windows: int = 0
    examples: int = 0
    unadmitted: int = 0
    loss: float | None = None
    evaluation: Evaluation | None = None
    _window: dict[str, object] = field(default_factory=dict)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Keep and show a window's evaluation."""
        self.evaluation = evaluation
        if self.speaks:
            save(self.store, evaluation)
            self.metrics.evaluated(evaluation)

    def absorbed(self, changes: RowChanges, rows: int, unadmitted: int) -> None:
        """Note what a window changed in the item table."""
        self.unadmitted += unadmitted
        self.metrics.absorbed(changes, rows, unadmitted)

    def counted(self, frequencies: FrequencyEstimator | None) -> None:
        """Note what log Q is now computed from."""
        if self.speaks and frequencies is not None:
            self.metrics.counted(frequencies)

    def begun(self, window: str, sequence: int, batches: int, batch: int, step: int) -> None:
        """Note that training on a window begins or goes on."""
        self._window = {"window": window, "sequence": sequence, "batches": batches}
        self._tell(batch, step)

    def stepped(self, result: StepResult, examples: int, batch: int, step: int) -> None:
        """Note a step on `examples` rows."""
        if result.refused:
            logger.warning("step %d is refused: loss %s, gradients of norm %s", step, result.loss, result.norm)
        else:
            self.examples += examples
            self.loss = result.loss
        self.metrics.stepped(result, examples)
        if step % _STEPS_BETWEEN_REPORTS == 0:
            self._tell(batch, step)

    def learnt(self, sequence: int, batches: int, step: int) -> None:
        """Note that a window has been learnt."""
        self.windows += 1
        self.metrics.learnt(sequence)
        logger.info("window %s learnt, step %d, loss %s", self._window["window"], step, self.loss)
        self._tell(batches, step)

    def _tell(self, batch: int, step: int) -> None:
        if self.speaks and self.report is not None:
            facts = {"examples": self.examples, "loss": self.loss, "evaluation": self.evaluation}
            self.report(TrainProgress.model_validate({**self._window, "batch": batch, "step": step, **facts}))
