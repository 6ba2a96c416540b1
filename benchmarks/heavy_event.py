"""What one event of an absurd weight costs recall, under each limit of the gradient's norm.

    OMP_NUM_THREADS=1 python -m benchmarks.heavy_event                # MovieLens-1M of WEIR_DATA, some four minutes

The first events of MovieLens-1M in weekly windows, one pass each with the default settings; the event in the middle has
the weight 1, or a million. Recall is the mean over the windows after the first nine tenths, by events.
"""

import tempfile
from pathlib import Path
from typing import Annotated, Final

import torch
import typer

from benchmarks.harness import head, row
from tests.integration.test_training_movielens import commit_weeks, over_last_tenth
from weir.contracts import Store
from weir.trainer.config import OptimizerConfig, TrainerConfig
from weir.trainer.train import train

app = typer.Typer(help=__doc__, rich_markup_mode=None, add_completion=False)

LIMITS: Final = (None, 100.0, 10.0, 3.0, 2.0, 1.0)
CUTOFFS: Final = (20, 100)


@app.command()
def main(
    events: Annotated[int, typer.Option(help="events, oldest first")] = 60_000,
    weight: Annotated[float, typer.Option(help="weight of the event in the middle")] = 1e6,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    names = [f"recall@{k}, {which}" for k in CUTOFFS for which in ("no heavy event", "one")]
    head("limit", *names)
    with tempfile.TemporaryDirectory(prefix="weir-heavy-") as folder:
        for limit in LIMITS:
            plain, heavy = (recalls(Path(folder) / f"{limit}-{one}", events, limit, one) for one in (1.0, weight))
            row(limit or "none", *(found[f"recall@{k}"] for k in CUTOFFS for found in (plain, heavy)))


def recalls(folder: Path, events: int, limit: float | None, weight: float) -> dict[str, float]:
    """Return the means of a pass over the events."""
    store = Store(str(folder))
    commit_weeks(store, events, {events // 2: weight})
    # Sums that nothing leaves, which a heavy event harms most, and the batches that the limit was chosen for.
    optimizer = OptimizerConfig(max_gradient_norm=limit, embedding_memory=1.0)
    own = {"metrics_port": 0, "export_every_windows": 1000, "batch_size": 512}
    train(store, TrainerConfig(device="cpu", optimizer=optimizer, **own))
    return over_last_tenth(store)


if __name__ == "__main__":
    app()
