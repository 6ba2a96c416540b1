"""The methods (rows) that `weir bench losses` compares, each trained with several seeds under the same budget.

A row sets the loss and the negatives; tower, batch, optimiser and temperature come from the base configuration, the
same for all rows of a comparison.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

from weir.trainer.offline.data import Interactions
from weir.trainer.offline.evaluator import Evaluator, Rules
from weir.trainer.offline.fit import Budget, StepReport, fit
from weir.trainer.offline.model import Estimator, OfflineModel
from weir.trainer.offline.results import RunResult, result_name, save_result
from weir.trainer.offline.splits import Split
from weir.trainer.ranks.workers import deterministic
from weir.trainer.settings.trainer import LossConfig, NegativesConfig, TrainerConfig

__all__ = ["FAMILIES", "ROWS", "Plan", "Row", "choose_rows", "compare", "missing_runs", "run"]


_N: Final = 256
"""Negatives in a shared pool that is not the whole batch."""

_IN_BATCH: Final = {"in_batch": True, "in_batch_limit": _N, "uniform": 0}
_UNIFORM: Final = {"in_batch": False, "uniform": _N}
_MIXED: Final = {"in_batch": True, "in_batch_limit": _N // 2, "uniform": _N // 2}
_WHOLE_BATCH: Final = {"in_batch": True, "in_batch_limit": None, "uniform": 0}
_OWN: Final = {"in_batch": False, "uniform": 0, "per_row": 1}


@dataclass(frozen=True)
class Row:
    """A method: its changes to the sections `loss` and `negatives`, and the frequency estimator for log Q."""

    negatives: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, Any] = field(default_factory=dict)
    estimator: Estimator = "exact"

    def configure(self, base: TrainerConfig, seed: int) -> TrainerConfig:
        """Return the configuration of a run: `base` with the changes of the row, and a seed."""
        plain = base.model_dump() | {"seed": seed}
        # Settings that a row leaves out take the default, so that rows are the same in every comparison.
        masked = {"mask_history": base.negatives.mask_history}
        plain["negatives"] = NegativesConfig().model_dump() | masked | self.negatives
        plain["loss"] = LossConfig().model_dump() | self.loss
        return TrainerConfig.model_validate(plain)


def _softmax(negatives: dict[str, Any], correction: str, **more: Any) -> Row:
    return Row({**negatives, "correction": correction, **more})


def _pointwise(objective: str) -> Row:
    return Row(_WHOLE_BATCH, {"kind": "pointwise", "objective": objective})


_SOFTMAX: Final = {
    "BCE": Row(_UNIFORM, {"kind": "bce"}),
    "gBCE": Row(_UNIFORM, {"kind": "gbce"}),
    "full softmax": Row(_UNIFORM, {"kind": "full_softmax"}),
    "uniform, none": _softmax(_UNIFORM, "none"),
    "uniform, standard": _softmax(_UNIFORM, "standard"),
    "uniform, improved": _softmax(_UNIFORM, "improved"),
    "in-batch, none": _softmax(_IN_BATCH, "none"),
    "in-batch, standard": _softmax(_IN_BATCH, "standard"),
    "in-batch, improved": _softmax(_IN_BATCH, "improved"),
    "in-batch without duplicates, none": _softmax(_IN_BATCH, "none", deduplicate=True),
    "in-batch without duplicates, improved": _softmax(_IN_BATCH, "improved", deduplicate=True),
    "mixed, none": _softmax(_MIXED, "none"),
    "mixed, standard": _softmax(_MIXED, "standard"),
    "mixed, improved": _softmax(_MIXED, "improved"),
    "mixed, standard, unigram": _softmax(_MIXED, "standard", density="unigram"),
    "mixed, improved, unigram": _softmax(_MIXED, "improved", density="unigram"),
}
"""Khrylchenko et al., "Correcting the LogQ Correction", RecSys 2025."""

_RESAMPLING: Final = {
    "SSL": _softmax(_WHOLE_BATCH, "none"),
    "SSL-Pop": _softmax(_WHOLE_BATCH, "standard"),
    "MNS": _softmax({**_WHOLE_BATCH, "uniform": 512}, "standard", density="unigram"),
    "G-Tower": Row({**_WHOLE_BATCH, "correction": "standard"}, estimator="gap"),
    "BIR": Row(_WHOLE_BATCH, {"kind": "resampled_softmax"}),
    "XIR": Row(_WHOLE_BATCH, {"kind": "resampled_softmax", "cache": 1024}),
}
"""Chen et al., "Cache-Augmented Inbatch Importance Resampling", NeurIPS 2022."""

_PAIRWISE: Final = {
    "BPR": Row(_OWN, {"kind": "bpr"}),
    "BPR with BNS": Row({**_OWN, "bayesian_candidates": 5}, {"kind": "bpr"}),
    "InfoNCE": Row(_UNIFORM, {"kind": "info_nce"}),
    "DCL": Row(_UNIFORM, {"kind": "debiased_contrastive", "tau_plus": 0.001}),
    "HCL": Row(_UNIFORM, {"kind": "hard_contrastive", "tau_plus": 0.001, "beta": 0.5}),
    "debiased positives": Row(_UNIFORM, {"kind": "debiased_positive", "tau_plus": 0.01, "extra_positives": 2}),
    "DPL": Row(_UNIFORM, {"kind": "dpl", "tau_plus": 0.001, "extra_positives": 5}),
}
"""Liu et al., "Debiased Pairwise Learning"; Troeshestova and Isachenko, for the debiased positives."""

_POINTWISE: Final = {
    "In-Batch": _pointwise("in_batch"),
    "Popularity": _pointwise("popularity"),
    "Pos-Neg": _pointwise("pos_neg"),
    "Unbiased": _pointwise("unbiased"),
    "Unbiased-omega": Row(_WHOLE_BATCH, {"kind": "pointwise", "objective": "unbiased_omega", "omega": 0.1}),
    "naive sampling": Row(_WHOLE_BATCH, {"kind": "pointwise", "sampling": "naive"}),
    "cross sampling": Row(_WHOLE_BATCH, {"kind": "pointwise", "sampling": "cross"}),
    "Sogram": Row(_WHOLE_BATCH, {"kind": "sogram"}),
}
"""Liu, Lin and Lin, "Examining the Bias of In-Batch Sampling"."""

FAMILIES: Final[dict[str, dict[str, Row]]] = {
    "softmax": _SOFTMAX,
    "resampling": _RESAMPLING,
    "pairwise": _PAIRWISE,
    "pointwise": _POINTWISE,
}

ROWS: Final = {name: row for family in FAMILIES.values() for name, row in family.items()}


def choose_rows(names: str) -> dict[str, Row]:
    """Return the rows with these names: families, ``all``, or single rows, separated by semicolons.

    Raises
    ------
    ValueError
        For an unknown name.
    """
    chosen: dict[str, Row] = {}
    for name in (part.strip() for part in names.split(";")):
        if name == "all":
            chosen |= ROWS
        elif name in FAMILIES:
            chosen |= FAMILIES[name]
        elif name in ROWS:
            chosen[name] = ROWS[name]
        else:
            allowed = f"all, {', '.join(FAMILIES)}; or rows: {'; '.join(ROWS)}"
            raise ValueError(f"rows = {name!r}: no such row or family; allowed: {allowed}")
    return chosen


@dataclass(frozen=True, eq=False)
class Plan:
    """Data and settings shared by all runs of a comparison, with limits on the numbers of cases (None: all)."""

    interactions: Interactions
    split: Split
    base: TrainerConfig
    budget: Budget
    rules: Rules
    test_cases: int | None
    validation_cases: int = 2000

    def evaluators(self) -> tuple[Evaluator, Evaluator]:
        """Return two evaluators: for the learning curve, on a sample of the validation cases, and for the test."""
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
    """Train a row with a seed and test it; `job` is the name of the row, and the seed."""
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
