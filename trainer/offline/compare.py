"""Train all rows and seeds of a comparison under one budget, one result file per run, so that it can be resumed."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from weir.trainer.config import TrainerConfig
from weir.trainer.offline.data import Interactions
from weir.trainer.offline.evaluator import Evaluator, Rules
from weir.trainer.offline.fit import Budget, StepReport, fit
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.results import RunResult, result_name, save_result
from weir.trainer.offline.rows import Row
from weir.trainer.offline.splits import Split
from weir.trainer.ranks.workers import deterministic

__all__ = ["Plan", "compare", "missing_runs", "run"]


@dataclass(frozen=True, eq=False)
class Plan:
    """Settings shared by all runs of a comparison; limits on validation and test cases (None: all)."""

    interactions: Interactions
    split: Split
    base: TrainerConfig
    budget: Budget
    rules: Rules
    test_cases: int | None
    validation_cases: int = 2000

    def evaluators(self) -> tuple[Evaluator, Evaluator]:
        """Return the evaluators of the learning curve, on a sample of the validation cases, and of the test."""
        train = self.split.train
        return (
            Evaluator.of(self.interactions, train, self.split.validation, self.rules, at_most=self.validation_cases),
            Evaluator.of(self.interactions, train, self.split.test, self.rules, at_most=self.test_cases),
        )


def compare(
    plan: Plan, rows: dict[str, Row], seeds: tuple[int, ...], folder: Path, progress: Callable[[str, int], StepReport]
) -> None:
    """Execute every run without a result in `folder`, seed by seed; `progress` returns the step report of a run."""
    missing = missing_runs(rows, seeds, folder)
    if not missing:
        return
    evaluators = plan.evaluators()
    for name, seed in missing:
        save_result(folder, run(plan, rows[name], (name, seed), evaluators, progress(name, seed)))


def missing_runs(rows: Iterable[str], seeds: tuple[int, ...], folder: Path) -> list[tuple[str, int]]:
    """Return the row and seed of every run without a result in `folder`, in the order of execution."""
    runs = product(seeds, rows)
    return [(name, seed) for seed, name in runs if not (folder / result_name(name, seed)).exists()]


def run(
    plan: Plan, row: Row, job: tuple[str, int], evaluators: tuple[Evaluator, Evaluator], report: StepReport
) -> RunResult:
    """Train a row and test it; `job` is its name and seed."""
    name, seed = job
    validation, test = evaluators
    config = row.configure(plan.base, seed)
    with deterministic():
        model = OfflineModel.fresh(config, plan.interactions, plan.split.train, row.estimator)
        # A split may have no validation part; then there is no curve.
        curve_cases = validation if len(validation.cases) else None
        trained = fit(model, plan.interactions, plan.split.train, plan.budget, validation=curve_cases, report=report)
        started = time.perf_counter()
        tested = test.test(model)
    return RunResult(
        row=name,
        seed=seed,
        steps=trained.steps,
        best_step=trained.best_step,
        examples=trained.examples,
        train_seconds=trained.seconds,
        evaluate_seconds=time.perf_counter() - started,
        parameters=model.parameters,
        curve=trained.curve,
        **vars(tested),
    )
