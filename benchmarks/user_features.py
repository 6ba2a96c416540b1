"""What features of the moment add in one pass over a stream, and what they cost.

    OMP_NUM_THREADS=1 python -m benchmarks.user_features films              # MovieLens-1M of WEIR_DATA
    OMP_NUM_THREADS=1 python -m benchmarks.user_features run LOG --seeds 3

A log with times, as Parquet, gets columns: the hour and the weekday of each event (UTC), and a text drawn from twenty
by chance. `weir ingest` and `weir train` take each set of them in, with the defaults otherwise; each window tests the
model before it is trained on. CPU is that of the whole of `weir train`, which makes one bundle.
"""

import json
import resource
import tempfile
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer

from benchmarks.harness import DATA, Data, command_line, head, interactions_of, row, weir
from benchmarks.streamed import ingested
from weir.contracts import Store
from weir.trainer.state.evaluation import Evaluation, mean_metrics

app = command_line(__doc__)

_SETS: Final[dict[str, list[str]]] = {
    "nothing": [],
    "hour and weekday": ["hour", "weekday"],
    "chance": ["chance"],
    "all three": ["hour", "weekday", "chance"],
}
_SKIPPED: Final = 0.3
"""Share of the windows before the first that counts."""


class _Figures(NamedTuple):
    recall: float
    ndcg: float
    cpu_seconds: float


@app.command()
def films(data: Data = DATA, seeds: Annotated[int, typer.Option(min=1)] = 1) -> None:
    """Print the table of MovieLens-1M."""
    run(interactions_of(data, "ml-1m"), seeds=seeds)


@app.command()
def run(
    log: Annotated[Path, typer.Argument(exists=True, help="the log, as Parquet with `timestamp` in seconds")],
    seeds: Annotated[int, typer.Option(min=1, help="runs of each set")] = 1,
) -> None:
    """Print recall, NDCG and CPU of each set of features."""
    head("features", "recall@20", "NDCG@20", "CPU, s", "CPU / that without")
    plain = 0.0
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder) / "log.parquet"
        pq.write_table(_described(pq.read_table(log)), described)
        for name, features in _SETS.items():
            store = _ingested(described, f"{folder}/{len(features)}-{name}", features)
            found = np.mean([_trained(store, seed) for seed in range(seeds)], 0)
            recall, ndcg, cpu_seconds = found.tolist()
            plain = plain or cpu_seconds
            row(name, f"{recall:.4f}", f"{ndcg:.4f}", f"{cpu_seconds:.0f}", f"{cpu_seconds / plain:.2f}")


def _described(log: pa.Table) -> pa.Table:
    """Add the columns to a log, in order of time."""
    ordered = log.sort_by("timestamp")
    moment = ordered["timestamp"].cast(pa.timestamp("s"))
    drawn = np.random.default_rng(0).integers(20, size=len(ordered)).astype(str)
    added = {"hour": pc.hour(moment), "weekday": pc.day_of_week(moment), "chance": pa.array(drawn)}
    for name, values in added.items():
        ordered = ordered.append_column(name, values.cast(pa.string()))
    return ordered


def _ingested(log: Path, store: str, features: list[str]) -> Store:
    names = json.dumps({"categorical": features})
    return Store(ingested(log, store, [f"pipeline.user_features={names}", "pipeline.timestamp_unit=s"]))


def _trained(store: Store, seed: int) -> _Figures:
    """Train once over a store, and return what the tests of the windows say."""
    for name in ("bundles", "checkpoints", "evaluations"):
        store.remove(name)
    before = _cpu()
    own = ["export_every_windows=1000", "metrics_port=0", "evaluation_k=[20]", f"seed={seed}"]
    options = [part for one in own for part in ("--set", f"trainer.{one}")]
    weir("train", "--store", store.path(""), *options)
    spent = _cpu() - before
    found = [Evaluation.model_validate_json(store.read(name)) for name in store.glob("evaluations/*/*.json")]
    counted = sorted(found, key=lambda one: one.sequence)[round(_SKIPPED * len(found)) :]
    means = mean_metrics(counted)
    return _Figures(means["recall@20"], means["ndcg@20"], spent)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    app()
