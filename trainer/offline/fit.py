"""One offline training run, of a fixed number of steps."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from trainer.offline.data import Interactions, Ints
from trainer.offline.evaluator import Evaluator
from trainer.offline.examples import training_batches
from trainer.offline.model import OfflineModel
from trainer.offline.results import CurvePoint
from trainer.ranks.workers import Workers
from trainer.step.step import train_step

__all__ = ["Budget", "Fit", "StepReport", "fit"]

StepReport = Callable[[int, float], None]
"""Called after each step with its number and loss."""


@dataclass(frozen=True)
class Budget:
    """Steps of a run, and steps between validations."""

    steps: int
    validate_every: int


@dataclass(frozen=True)
class Fit:
    """The learning curve of a run, the positives trained on, and its seconds without validation."""

    curve: tuple[CurvePoint, ...]
    examples: int
    seconds: float


def fit(
    model: OfflineModel,
    interactions: Interactions,
    train: Ints,
    budget: Budget,
    *,
    validation: Evaluator | None = None,
    report: StepReport | None = None,
) -> Fit:
    """Train a fresh model on the interactions numbered `train`; the same seed gives the same model.

    Raises
    ------
    ValueError
        If the loss turns NaN or infinite.
    """
    curve: list[CurvePoint] = []
    batches = training_batches(model.config, interactions, train)
    examples, seconds, losses = 0, 0.0, []
    for step in range(1, budget.steps + 1):
        started = time.perf_counter()
        batch = next(batches)
        loss = train_step(model, batch, Workers()).loss
        seconds += time.perf_counter() - started
        examples += int(batch.real.sum())
        losses.append(loss)
        if not math.isfinite(loss):
            raise ValueError(f"the loss is {loss} at step {step}: try a lower learning rate or a higher temperature")
        if report:
            report(step, loss)
        if validation and (step % budget.validate_every == 0 or step == budget.steps):
            mean = sum(losses) / len(losses)
            curve.append(CurvePoint(step=step, seconds=seconds, loss=mean, metrics=validation.validate(model)))
            losses.clear()
    return Fit(tuple(curve), examples, seconds)
