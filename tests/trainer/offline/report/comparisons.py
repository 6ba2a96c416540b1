"""Comparisons on disk, whose figures are drawn at random so that no two are alike."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weir.trainer.offline.report.table import Table, summarise
from weir.trainer.offline.results import (
    Comparison,
    RunResult,
    load_comparison,
    load_results,
    save_comparison,
    save_result,
)

METRICS = ("recall@10", "recall@20", "ndcg@20")
STRATA = {"head": 0.5, "torso": 0.3, "tail": 0.2}


def comparison(rows: Sequence[str], seeds: Sequence[int], **changes: Any) -> Comparison:
    fields: dict[str, Any] = {
        "title": "Losses",
        "data": "ml-1m",
        "split": "leave-one-out",
        "rows": rows,
        "seeds": seeds,
        "cutoffs": [10, 20],
        "headline": "recall@20",
        "configuration": {row: {"loss": row, "batch": 1024, "tower": {"layers": 2}} for row in rows},
        "facts": {"users": 6040, "items": 3416},
        "versions": {"torch": "2.13.0"},
        "command": "weir bench losses --data ml-1m",
    }
    return Comparison.model_validate(fields | changes)


def run(row: str, seed: int, **changes: Any) -> RunResult:
    random = np.random.default_rng([seed, *row.encode()])
    metrics = {metric: float(random.uniform(0.1, 0.3)) for metric in METRICS}
    steps = range(100, 1000, 100)
    fields: dict[str, Any] = {
        "row": row,
        "seed": seed,
        "steps": 900,
        "best_step": 900,
        "examples": 921_600,
        "train_seconds": float(random.uniform(50, 100)),
        "evaluate_seconds": 2.0,
        "parameters": 241_000,
        "curve": [
            {"step": step, "seconds": step / 10, "loss": 5.0, "metrics": {"recall@20": float(random.uniform(0.1, 0.3))}}
            for step in steps
        ],
        "metrics": metrics,
        "intervals": {"recall@20": [metrics["recall@20"] - 0.01, metrics["recall@20"] + 0.01]},
        "strata": {name: {"share": share, "recall@20": float(random.random())} for name, share in STRATA.items()},
        "deciles": [{"recall@20": float(random.random()), "cases": 604} for _ in range(10)],
    }
    return RunResult.model_validate(fields | changes)


def write(
    folder: Path,
    rows: Sequence[str],
    seeds: Sequence[int] = (0, 1, 2),
    finished: Callable[[int, int], bool] = lambda row, seed: True,
    **changes: Any,
) -> Table:
    """Save a comparison with the runs that `finished` (row's number, seed) names; return the table of what is there."""
    save_comparison(folder, comparison(rows, seeds, **changes))
    for number, row in enumerate(rows):
        for seed in seeds:
            if finished(number, seed):
                save_result(folder, run(row, seed))
    return read(folder)


def read(folder: Path) -> Table:
    found = load_comparison(folder)
    return summarise(found, load_results(folder, found))
