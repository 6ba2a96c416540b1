"""Why two corrections of log Q train two models: they pull each row in the same direction, and differ in how hard.

    python -m benchmarks.row_weights --steps 1500 --seeds 3    # MovieLens-1M, from WEIR_DATA

The gradient of a row is c (softmax over the negatives - positive), with c the estimated probability of not choosing the
positive p. "standard" counts the positive 1 / (k Q(p)) times against k negatives, "improved" once. Here models are
trained with (k Q(p)) ^ -exponent instead: exponent 0 is "improved", 1 is "standard". "the mean" has one number for all
items, as large as that of "standard" in the geometric mean: as much weight taken away, but from all rows alike.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Final
from unittest.mock import patch

import numpy as np
import typer
from torch import Tensor

from benchmarks.harness import DATA, Data, command_line, head, interactions_of, row
from weir.readers import LogConfig
from weir.trainer.config import NegativesConfig, OptimizerConfig, TowerConfig, TrainerConfig
from weir.trainer.losses import softmax
from weir.trainer.losses.inputs import LossInputs
from weir.trainer.offline.compare import Plan, run
from weir.trainer.offline.data import read_interactions
from weir.trainer.offline.evaluator import Rules
from weir.trainer.offline.fit import Budget
from weir.trainer.offline.results import RunResult
from weir.trainer.offline.rows import ROWS
from weir.trainer.offline.splits import temporal

app = command_line(__doc__)

Loss = Callable[[LossInputs, TrainerConfig], Tensor]

Steps = Annotated[int, typer.Option(min=1, help="Training steps of each run.")]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each row.")]


@dataclass(frozen=True)
class Weight:
    """The positive counts (k Q(p)) ^ -`exponent` times; `in_the_mean` takes the geometric mean over the rows."""

    exponent: float
    in_the_mean: bool = False

    def log_times(self, log_q_pos: Tensor, columns: float) -> Tensor:
        """Return the logarithm of how often each positive counts, (b,), given log Q(p) (b,) and k."""
        times: Tensor = -self.exponent * (log_q_pos + np.log(columns))
        return times.mean().expand_as(times) if self.in_the_mean else times


WEIGHTS: Final = {
    "once: improved": Weight(0.0),
    "(k Q) ^ -1/2": Weight(0.5),
    "1 / (k Q): standard": Weight(1.0),
    "(k Q) ^ -3/2": Weight(1.5),
    "1 / (k Q), the mean": Weight(1.0, in_the_mean=True),
}


def weighed(weight: Weight) -> Loss:
    """Return the loss of ``correction="standard"`` with another number of positives."""
    plain = softmax.sampled_softmax_of

    def loss(step: LossInputs, config: TrainerConfig) -> Tensor:
        columns = float(len(step.given("columns")) if step.times is None else step.times.sum())
        log_q_pos = -weight.log_times(step.given("log_q_pos"), columns) - np.log(columns)
        return plain(replace(step, log_q_pos=log_q_pos), config)

    return loss


@contextmanager
def training_with(weight: Weight) -> Iterator[None]:
    """Let the trainer's sampled softmax weigh rows like this."""
    with patch.object(softmax, "sampled_softmax_of", weighed(weight)):
        yield


@app.command()
def compare(data: Data = DATA, steps: Steps = 1500, seeds: Seeds = 3) -> None:
    """Train each of them, and print recall for popular and rare films."""
    interactions = read_interactions(str(interactions_of(data, "ml-1m")), LogConfig())
    base = TrainerConfig(
        device="cpu",
        batch_size=64,
        negatives=NegativesConfig(mask_history=False),
        tower=TowerConfig(kind="sasrec", dropout=0.0),
        optimizer=OptimizerConfig(embedding_memory=1.0),
    )
    plan = Plan(
        interactions, temporal(interactions), base, Budget(steps, steps), Rules("interaction", cutoffs=(20,)), None
    )
    evaluators = plan.evaluators()
    head("the positive counts", "seeds", "Recall@20", "NDCG@20", "head", "torso", "tail")
    for name, weight in WEIGHTS.items():
        with training_with(weight):
            found = [
                run(plan, ROWS["in-batch, standard"], (name, seed), evaluators, lambda _: None) for seed in range(seeds)
            ]
        row(name, seeds, *cells(found))


def cells(found: list[RunResult]) -> Iterator[str]:
    """Yield the columns of a row: means over seeds, those of all cases with their deviation."""
    for metric in ("recall@20", "ndcg@20"):
        values = [one.metrics[metric] for one in found]
        spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
        yield f"{np.mean(values):.4f}{spread}"
    for stratum in ("head", "torso", "tail"):
        yield f"{np.mean([one.strata[stratum].metrics['recall@20'] for one in found]):.3f}"


if __name__ == "__main__":
    app()
