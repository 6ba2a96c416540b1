"""Rows by seeds under one budget: each run is a file, so that a comparison can be killed and goes on where it stood."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from trainer.config import TrainerConfig
from trainer.offline.data import Interactions
from trainer.offline.examination import Examination, Rules
from trainer.offline.fit import Budget, Report, fit
from trainer.offline.model import OfflineModel
from trainer.offline.results import RunResult, result_name, save_result
from trainer.offline.rows import Row
from trainer.offline.splits import Split
from trainer.ranks.runtime import deterministic

__all__ = ["Job", "Plan", "compare", "missing_runs", "run"]

_VALIDATION_CASES: Final = 2000


@dataclass(frozen=True, eq=False)
class Plan:
    """What all runs of a comparison share."""

    interactions: Interactions
    split: Split
    base: TrainerConfig
    budget: Budget
    rules: Rules
    test_cases: int | None

    def examinations(self) -> tuple[Examination, Examination]:
        """Return what is asked on the way, a choice of the validation cases, and what is asked at the end."""
        train = self.split.train
        return (
            Examination.of(self.interactions, train, self.split.validation, self.rules, at_most=_VALIDATION_CASES),
            Examination.of(self.interactions, train, self.split.test, self.rules, at_most=self.test_cases),
        )


def compare(
    plan: Plan, rows: dict[str, Row], seeds: tuple[int, ...], folder: Path, progress: Callable[[str, int], Report]
) -> None:
    """Make every run that `folder` does not hold yet, seed by seed; `progress` begins the report of a run."""
    missing = missing_runs(rows, seeds, folder)
    if not missing:
        return
    examinations = plan.examinations()
    for name, seed in missing:
        job = Job(name, rows[name], seed)
        save_result(folder, run(plan, job, examinations, progress(name, seed)))


def missing_runs(rows: Iterable[str], seeds: tuple[int, ...], folder: Path) -> list[tuple[str, int]]:
    """Return the row and the seed of every run that `folder` does not hold yet, in the order of their making."""
    runs = product(seeds, rows)
    return [(name, seed) for seed, name in runs if not (folder / result_name(name, seed)).exists()]


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    name: str
    row: Row
    seed: int


def run(plan: Plan, job: Job, examinations: tuple[Examination, Examination], report: Report) -> RunResult:
    """Train one row with one seed, and test it."""
    validation, test = examinations
    config = job.row.configure(plan.base, job.seed)
    with deterministic():
        model = OfflineModel.fresh(config, plan.interactions, plan.split.train, job.row.estimator)
        # A split may have no validation; then there is no curve.
        looks = validation if len(validation.cases) else None
        learnt = fit(model, plan.interactions, plan.split.train, plan.budget, validation=looks, report=report)
        begun = time.perf_counter()
        figures = test.test(model)
    return RunResult(
        row=job.name,
        seed=job.seed,
        steps=plan.budget.steps,
        examples=learnt.examples,
        train_seconds=learnt.seconds,
        evaluate_seconds=time.perf_counter() - begun,
        parameters=model.parameters,
        curve=learnt.curve,
        metrics=figures.metrics,
        intervals=figures.intervals,
        strata=figures.strata,
        deciles=figures.deciles,
    )
