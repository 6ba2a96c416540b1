"""An offline training run: train until steps, patience or seconds are used up, and keep the best step."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from torch import Tensor

from weir.trainer.offline.data import Interactions, Ints
from weir.trainer.offline.evaluator import Evaluator
from weir.trainer.offline.examples import training_batches
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.results import CurvePoint
from weir.trainer.ranks.device import keep_freed_memory
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.step import train_step

__all__ = ["BestStep", "Budget", "Fit", "Step", "StepReport", "fit"]


_CLOSEST: Final = 20
_FARTHEST: Final = 200
"""Fewest and most steps between validations when they follow epochs."""


class BestStep:
    """Keeps a copy of the model with the highest validation metric so far; on ties, the first one.

    Parameters
    ----------
    metric
        Name of the metric, such as recall@20.
    """

    def __init__(self, metric: str) -> None:
        self.point: CurvePoint | None = None
        self.worse_since = 0
        """Validations since the best one."""
        self._metric = metric
        self._weight = Tensor()
        self._tower: dict[str, Tensor] = {}

    def see(self, point: CurvePoint, model: OfflineModel) -> None:
        """Record a validation, and copy the model if it is the best so far."""
        if self.point is not None and point.metrics[self._metric] <= self.point.metrics[self._metric]:
            self.worse_since += 1
            return
        self.point, self.worse_since = point, 0
        self._weight = model.embeddings.weight.clone()
        self._tower = {name: tensor.clone() for name, tensor in model.tower.state_dict().items()}

    def restore(self, model: OfflineModel) -> int:
        """Restore the best embeddings and tower, and return their step; the optimisers stay as they are.

        Raises
        ------
        ValueError
            Before the first validation.
        """
        if self.point is None:
            raise ValueError("there was no validation yet")
        model.embeddings.weight.copy_(self._weight)
        model.tower.load_state_dict(self._tower)
        return self.point.step


@dataclass(frozen=True)
class Budget:
    """Limits on steps and seconds of a training run, and the times of its validations.

    Attributes
    ----------
    steps
        Most steps.
    validate_every
        Steps between validations; None: an epoch, but at least 20 and at most 200 steps.
    patience
        Validations in a row without improvement after which the run stops; the model of the best step is kept.
        None: no early stopping; the model of the last step is kept.
    seconds
        Most seconds of training and validation together; a run that stops for it is not reproducible. None: no limit.
    """

    steps: int
    validate_every: int | None = None
    patience: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Step:
    """A finished step: its number from 1, its loss, the epochs so far, and the best validation so far."""

    number: int
    loss: float
    epochs: float
    best: CurvePoint | None


StepReport = Callable[[Step], None]
"""Called after each step."""


@dataclass(frozen=True)
class Fit:
    """Result of a training run.

    `curve` is the learning curve, `examples` the number of positives trained on, `seconds` the time without validation,
    `epochs` the positives trained on per training interaction, and `ended` the reason for the stop. The model has the
    parameters of `best_step`.
    """

    curve: tuple[CurvePoint, ...]
    examples: int
    seconds: float
    steps: int
    best_step: int
    epochs: float
    ended: Literal["steps", "patience", "seconds"]


def fit(
    model: OfflineModel,
    interactions: Interactions,
    train: Ints,
    budget: Budget,
    *,
    validation: Evaluator | None = None,
    report: StepReport | None = None,
) -> Fit:
    """Train a fresh model on the interactions numbered `train`; the same seed and steps give the same model on a CPU.

    Raises
    ------
    ValueError
        If the loss turns NaN or infinite.
    """
    keep_freed_memory()
    run = _Run(model, len(train), budget, validation)
    batches = training_batches(model.config, interactions, train)
    while run.ended is None:
        started = time.perf_counter()
        batch = next(batches)
        loss = train_step(model, batch, Workers()).loss
        run.add(loss, int(batch.real.sum()), time.perf_counter() - started)
        if report:
            report(Step(run.step, loss, run.epochs, run.best.point if run.best else None))
    return run.finish()


class _Run:
    """Progress of a training run; validates the model when due, and decides when the run ends."""

    def __init__(self, model: OfflineModel, interactions: int, budget: Budget, validation: Evaluator | None) -> None:
        self.model, self.interactions, self.budget, self.validation = model, interactions, budget, validation
        self.best = BestStep(validation.rules.headline) if validation and budget.patience is not None else None
        self.step, self.examples, self.seconds = 0, 0, 0.0
        self.ended: Literal["steps", "patience", "seconds"] | None = None
        self._started = time.perf_counter()
        self._curve: list[CurvePoint] = []
        self._losses: list[float] = []
        self._validated_examples = 0

    @property
    def epochs(self) -> float:
        """Positives trained on per training interaction."""
        return self.examples / self.interactions

    def add(self, loss: float, examples: int, seconds: float) -> None:
        """Record a step, validate if this is due, and decide whether the run ends."""
        self.step += 1
        self.examples += examples
        self.seconds += seconds
        self._losses.append(loss)
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss is {loss} at step {self.step}: try a lower learning rate or a higher temperature"
            )
        if self.step == self.budget.steps:
            self.ended = "steps"
        elif self.budget.seconds is not None and time.perf_counter() - self._started >= self.budget.seconds:
            self.ended = "seconds"
        if self.validation and (self.ended or self._is_due()):
            self._validate(self.validation)

    def _is_due(self) -> bool:
        """Return whether a validation is due."""
        since = len(self._losses)
        if self.budget.validate_every is not None:
            return since == self.budget.validate_every
        is_epoch = self.examples - self._validated_examples >= self.interactions
        return since >= _FARTHEST or (is_epoch and since >= _CLOSEST)

    def _validate(self, validation: Evaluator) -> None:
        """Add a point to the learning curve, and apply the stopping rule."""
        mean = sum(self._losses) / len(self._losses)
        metrics = validation.validate(self.model)
        self._curve.append(CurvePoint(step=self.step, seconds=self.seconds, loss=mean, metrics=metrics))
        self._losses.clear()
        self._validated_examples = self.examples
        if self.best:
            self.best.see(self._curve[-1], self.model)
            if self.ended is None and self.best.worse_since == self.budget.patience:
                self.ended = "patience"

    def finish(self) -> Fit:
        """Restore the best model, and return the result."""
        assert self.ended is not None  # noqa: S101 - the caller's loop
        best = self.best.restore(self.model) if self.best else self.step
        return Fit(tuple(self._curve), self.examples, self.seconds, self.step, best, self.epochs, self.ended)
