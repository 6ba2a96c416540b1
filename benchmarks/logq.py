"""Recall of the trained model by the precision of log Q.

    python -m benchmarks.logq run       # train what has no result yet, one JSON file per run
    python -m benchmarks.logq report    # the table, and the plot by popularity decile

A run is one pass over MovieLens-1M, in order of time, for an estimator and a seed; a minute on one core with
OMP_NUM_THREADS=1. Of each window of 8,192 events, events of the last tenth of the log test the model (rank among all
items seen so far, without the user's newest 20); then the estimator counts the window, log Q is refreshed, and the
model trains on it once, in shuffled batches. The only negatives are the other positives of the batch, so log Q alone
corrects for their popularity. Counts never decay: the estimators differ in precision only.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import typer

from benchmarks.harness import DATA, F64, I64, Data, command_line, head, interactions_of, plotted, row
from benchmarks.histories import events_of
from benchmarks.states import admit
from weir.contracts import ItemKeys, Keys, UserKeys, UserTable, hash_ids
from weir.pipelines.transforms.histories import TouchedUsers
from weir.sketches import CountMinSketch, ExactCounter, FrequencyEstimator, GapEstimator
from weir.sketches.view import DecayedSketch
from weir.trainer.ranking import gain
from weir.trainer.ranks.workers import Workers, deterministic
from weir.trainer.settings.trainer import NegativesConfig, OptimizerConfig, TowerConfig, TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import Examples, batches
from weir.trainer.step.positives import Positives, SharedWindow
from weir.trainer.step.seeds import Purpose, generator
from weir.trainer.step.step import train_step
from weir.trainer.stream.prequential import scored_blocks

app = command_line(__doc__)

WINDOW: Final = 8192
HISTORY: Final = 20
TEST_SHARE: Final = 0.1
DECILES: Final = 10
# An exact counter of the 3,706 items takes 136 KiB; cells of a sketch take 4 bytes, of the gap estimator 16.
ESTIMATORS: Final[dict[str, Callable[[], FrequencyEstimator]]] = {
    "exact counts, 136 KiB": ExactCounter,
    "sketch, 128 KiB": lambda: CountMinSketch(8192, 4),
    "sketch, 32 KiB": lambda: CountMinSketch(2048, 4),
    "sketch, 8 KiB": lambda: CountMinSketch(512, 4),
    "gap estimator, 128 KiB": lambda: GapEstimator(2048, 4, 0.01),
    "no correction": ExactCounter,
}
NAMES: Final = {name: f"{number}-{name.replace(',', '').replace(' ', '-')}" for number, name in enumerate(ESTIMATORS)}
Out = Annotated[Path, typer.Option(help="folder of the results")]
OUT: Final = Path("build") / "logq-recall"


class Stream(NamedTuple):
    """The events in order of time: `keys` and `ids` of items (n,), and the user's `histories` (n, 20) before each."""

    keys: Keys
    ids: npt.NDArray[np.object_]
    histories: Keys


@app.command()
def run(data: Data = DATA, out: Out = OUT, seeds: int = 3, events: int = 1_000_209) -> None:
    """Train and test all estimators with all seeds; existing results are kept."""
    out.mkdir(parents=True, exist_ok=True)
    stream = read(interactions_of(data, "ml-1m"), events)
    for seed in range(seeds):
        for name in ESTIMATORS:
            path = out / f"{NAMES[name]}-{seed}.json"
            if not path.exists():
                partial = path.with_suffix(".partial")
                partial.write_text(json.dumps(train_and_test(stream, name, seed)))
                partial.replace(path)
                print(path, flush=True)


def read(path: Path, events: int) -> Stream:
    """Read the oldest events."""
    table = pq.read_table(path, columns=["user_id", "item_id", "timestamp"])
    order = np.argsort(table["timestamp"].to_numpy(), kind="stable")[:events]
    table = table.take(pa.array(order))
    users, items = (table[name].combine_chunks().cast(pa.string()) for name in ("user_id", "item_id"))
    keys = hash_ids(items)
    user_keys = UserKeys(hash_ids(users))
    touched = TouchedUsers.of(UserTable((), HISTORY), user_keys, HISTORY)
    history = touched.extend(events_of(user_keys, keys, table["timestamp"].to_numpy())).history
    return Stream(keys, items.to_numpy(zero_copy_only=False), history)


def settings(name: str, seed: int) -> TrainerConfig:
    """Return settings that train fast on one core."""
    return TrainerConfig(
        seed=seed,
        device="cpu",
        batch_size=512,
        optimizer=OptimizerConfig(embedding_memory=1.0),
        evaluation_filter_seen=True,
        tower=TowerConfig(kind="mean_pooling", dimension=32, history_length=HISTORY),
        negatives=NegativesConfig(uniform=0, correction="none" if name == "no correction" else "improved"),
    )


def train_and_test(stream: Stream, name: str, seed: int) -> dict[str, Any]:
    """Execute one run and return its metrics."""
    estimator, config = ESTIMATORS[name](), settings(name, seed)
    state = TrainerState.fresh(config)
    state.frequencies.memories = [DecayedSketch(1.0, estimator, 0.0)]
    first_test, ranks = round((1 - TEST_SHARE) * len(stream.keys)), []
    with deterministic(), Workers.from_environment("cpu") as workers:
        for number, first in enumerate(range(0, len(stream.keys), WINDOW)):
            part = slice(first, min(first + WINDOW, len(stream.keys)))
            if part.stop > first_test:
                tested = positives(stream, slice(max(part.start, first_test), part.stop))
                ranks += [block.ranks() for block in scored_blocks(state, Examples.of(tested, state.table))]
            ingest(state, estimator, stream, part, number)
            order = generator(seed, Purpose.SHUFFLE, number)
            for batch in batches(SharedWindow(positives(stream, part), workers), state.table, config.batch_size, order):
                train_step(state, batch, workers)
    found_ranks = torch.cat(ranks)
    decile, errors = deciles(stream.keys), log_q_errors(estimator, stream.keys)
    tested_decile = decile[first_test:]
    hits = (found_ranks <= 20).numpy()
    return {
        "recall": float(hits.mean()),
        "ndcg": float((hits * gain(found_ranks).numpy()).mean()),
        "recall_by_decile": [float(hits[tested_decile == d].mean()) for d in range(DECILES)],
        "log_q_error": float(errors.mean()),
        "log_q_error_by_decile": [float(errors[decile == d].mean()) for d in range(DECILES)],
    }


def positives(stream: Stream, part: slice) -> Positives:
    """Return a slice of the stream; the loss does not use the users."""
    items = stream.keys[part]
    return Positives.plain(UserKeys(np.zeros_like(items)), ItemKeys(items), ItemKeys(stream.histories[part]))


def ingest(state: TrainerState, estimator: FrequencyEstimator, stream: Stream, part: slice, number: int) -> None:
    """Count a window, admit its new items, refresh log Q."""
    estimator.update(stream.keys[part])
    keys, first = np.unique(stream.keys[part], return_index=True)
    admit(state, ItemKeys(keys), stream.ids[part][first], number)
    state.counts.read_all()


def deciles(keys: Keys) -> I64:
    """Return the popularity decile of each event's item among all items, 0 for the most frequent tenth."""
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    position = np.empty(len(counts), np.int64)
    position[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    decile: I64 = (position * DECILES // len(counts))[inverse]
    return decile


def log_q_errors(estimator: FrequencyEstimator, keys: Keys) -> F64:
    """Return |estimated log Q - true log Q| of each event at the end of the stream."""
    distinct, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    errors: F64 = np.abs(estimator.log_q(distinct) - np.log(counts / len(keys)))[inverse]
    return errors


@app.command()
def report(out: Out = OUT, picture: Path = Path("docs") / "images" / "logq-by-decile.png") -> None:
    """Print the table of the finished runs, and plot accuracy and recall by popularity decile."""
    found = {
        name: [json.loads(path.read_text()) for path in sorted(out.glob(f"{NAMES[name]}-*.json"))] for name in NAMES
    }
    done = {name: runs for name, runs in found.items() if runs}
    if not done:
        raise typer.BadParameter(f"{out} holds no result: run `python -m benchmarks.logq run` first")
    names = "log Q from | runs | W at the end | Recall@20 | deviation | NDCG@20 | Recall@20, rarer half of the items"
    head(*names.split(" | "))
    for name, runs in done.items():
        recalls = [one["recall"] for one in runs]
        spread = np.std(recalls, ddof=1) if len(recalls) > 1 else float("nan")
        ndcg = np.mean([one["ndcg"] for one in runs])
        rare = np.mean([one["recall_by_decile"][DECILES // 2 :] for one in runs])
        error = "-" if name == "no correction" else f"{runs[0]['log_q_error']:.4f}"
        row(name, len(runs), error, *(f"{value:.4f}" for value in (np.mean(recalls), spread, ndcg, rare)))
    draw(done, picture)


def draw(done: dict[str, list[dict[str, Any]]], picture: Path) -> None:
    """Plot both panels into one picture."""
    place = np.arange(1, DECILES + 1)
    with plotted(picture, 2, (11, 4.2)) as (left, right):
        for number, (name, runs) in enumerate(done.items()):
            errors = np.array(runs[0]["log_q_error_by_decile"])
            recalls = np.mean([one["recall_by_decile"] for one in runs], axis=0)
            if name != "no correction":
                left.plot(place, errors, "o-", label=name, color=f"C{number}", markersize=4)
            right.plot(place, recalls, "o-", label=name, color=f"C{number}", markersize=4)
        left.set_yscale("symlog", linthresh=1e-3)
        left.set(ylabel="mean |estimated log Q - true log Q|", title="Precision of log Q", ylim=(-1e-4, 10))
        right.set(yscale="log", ylabel="Recall@20", title="Recall of the trained model")
        for axes in (left, right):
            axes.set(xlabel="popularity decile of the item (1: the most frequent tenth)", xticks=place)
            axes.grid(alpha=0.3)
        right.legend(fontsize=8, loc="lower left")


if __name__ == "__main__":
    app()
