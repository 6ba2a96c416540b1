"""L2 of a whole table at every step, as dense Adam has it, undoes much of the bias of in-batch negatives.

    python -m benchmarks.dense_decay --steps 3000    # rows of Gowalla, from WEIR_DATA

Vectors of rare places shrink at every step, those of frequent ones grow back: without any correction popular places
come first again. The trainer's own `embedding_decay` acts on the rows of a batch only, and does not do that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final
from unittest.mock import patch

import torch
import typer
from torch import Tensor

from benchmarks.harness import DATA, Data, command_line, head, interactions_of, row
from weir.readers import LogConfig
from weir.trainer.config import NegativesConfig, OptimizerConfig, TowerConfig, TrainerConfig
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.offline.compare import Plan, run
from weir.trainer.offline.data import read_interactions
from weir.trainer.offline.evaluator import Rules
from weir.trainer.offline.fit import Budget
from weir.trainer.offline.rows import ROWS
from weir.trainer.offline.splits import random_per_user

app = command_line(__doc__)

RATE: Final = 0.005
TESTED: Final = ("SSL", "SSL-Pop")

Steps = Annotated[int, typer.Option(min=400, help="Training steps of each run.")]
Decay = Annotated[float, typer.Option(min=0, help="Share of each vector that is added to its gradient.")]


def dense_step(decay: float) -> Callable[..., None]:
    """Return what moves all rows of a table by Adam, and pulls each to zero."""
    optimizers: dict[Embeddings, tuple[torch.nn.Parameter, torch.optim.Adam]] = {}

    def step(table: Embeddings, rows: Tensor, gradient: Tensor, *_: float) -> None:
        if table not in optimizers:
            weight = torch.nn.Parameter(table.weight)  # the same numbers, in the same memory
            optimizers[table] = weight, torch.optim.Adam([weight], lr=RATE, weight_decay=decay)
        weight, adam = optimizers[table]
        weight.grad = torch.zeros_like(table.weight).index_copy_(0, rows, gradient)
        adam.step()

    return step


@contextmanager
def dense_adam(decay: float) -> Iterator[None]:
    """Let embeddings be trained like this."""
    with patch.object(Embeddings, "adagrad_step", dense_step(decay)):
        yield


@app.command()
def compare(data: Data = DATA, steps: Steps = 3000, decay: Decay = 1e-5) -> None:
    """Train both rows, and print recall for frequent and rare places."""
    interactions = read_interactions(str(interactions_of(data, "gowalla")), LogConfig())
    free = {"kind": "matrix_factorisation", "dimension": 32, "normalised": False, "temperature": 1.0}
    base = TrainerConfig(
        device="cpu",
        batch_size=2048,
        negatives=NegativesConfig(mask_history=False),
        tower=TowerConfig.model_validate(free),
        optimizer=OptimizerConfig(embedding_memory=1.0, embedding_scale=0.1),
    )
    rules, budget = Rules("user", cutoffs=(10, 20)), Budget(steps, 400, patience=10)
    plan = Plan(interactions, random_per_user(interactions), base, budget, rules, test_cases=10_000)
    evaluators = plan.evaluators()
    head("row", "best step", "Recall@10", "NDCG@10", "Recall@20", "head", "torso", "tail")
    for name in TESTED:
        with dense_adam(decay):
            found = run(plan, ROWS[name], (name, 0), evaluators, lambda _: None)
        cells = [found.metrics[metric] for metric in ("recall@10", "ndcg@10", "recall@20")]
        cells += [found.strata[stratum].metrics["recall@20"] for stratum in ("head", "torso", "tail")]
        row(name, found.best_step, *(f"{cell:.4f}" for cell in cells))


if __name__ == "__main__":
    app()
