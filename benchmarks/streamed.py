"""Recall of one pass over a stream, beside simple methods that are made again at every window.

    python -m benchmarks.streamed LOG                                 # the defaults of `weir train`
    OMP_NUM_THREADS=1 python -m benchmarks.streamed LOG --set trainer.tower.kind=hstu --cases 300     # another tower

`weir ingest` cuts the log into windows, at most 60 of a usual length. The trainer takes them in order, each once.
Before it learns a window, the window tests the model, and every peer made of all windows before it, with the settings
that did best on these, of all that are tried on the first eight. Differences are paired by event; their intervals are
over users. The last line is the CPU of the pass without its tests.
"""

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
import torch
import typer
from torch import Tensor

from benchmarks.harness import command_line, cpu_of_call, head, printed, row
from benchmarks.states import learner
from weir.config import assignments, load_settings
from weir.contracts import ItemKeys, Store, WindowLog, WindowManifest, hash_strings
from weir.demo.replay import nice_window
from weir.runtime.stopping import ended_by_signals
from weir.trainer.items.table import FIRST_ITEM, PADDING, TableRows
from weir.trainer.offline.contest import (
    DECAY,
    EASE,
    ITEM_KNN,
    L2,
    NEIGHBOURS,
    POPULARITY,
    Candidate,
    eases,
    item_knns,
    last_days,
)
from weir.trainer.offline.data import Interactions, Ints, read_interactions, read_store
from weir.trainer.offline.evaluator import Evaluator, Rules
from weir.trainer.offline.peers import Catalogue
from weir.trainer.offline.statistics import interval
from weir.trainer.ranking import Ranked, per_case, user_vectors
from weir.trainer.ranking.ranker import Scores
from weir.trainer.ranks.workers import Workers, deterministic
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.positives import SharedWindow
from weir.trainer.stream.windows import windows
from weir.trainer.towers import project

app = command_line(__doc__)

Floats = npt.NDArray[np.float64]
Settings = tuple[tuple[str, float], ...]
MODEL: Final = "the model"
METRICS: Final = ("recall@20", "ndcg@20")
_SETTLED: Final = 8
"""Windows for which all settings of item-kNN and EASE are tried."""
_RULES: Final = Rules("interaction", (20,))


@app.command()
def contest(
    log: Annotated[Path, typer.Argument(exists=True, help="the log")],
    assign: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as of `weir train`")] = None,
    cases: Annotated[int, typer.Option(min=1, help="events of each window that are ranked, at most")] = 500,
    parts: Annotated[int, typer.Option(min=1, help="parts of the stream with rows of their own")] = 4,
) -> None:
    """Print recall and NDCG of the model and of its peers, by part of the stream and of all of it."""
    with tempfile.TemporaryDirectory() as folder:
        store = ingested(log, f"{folder}/store", assign or [])
        values, _ = assignments(assign or [])
        interactions = read_store(store)
        stream = Stream(interactions, cases)
        spent = cpu_of_call(partial(train, Store(store), load_settings(overrides=values).trainer, stream))
        windows_of = np.array_split(np.arange(len(stream.tests)), parts)
        for number, some in enumerate(windows_of, 1):
            stream.print(f"part {number} of {parts}", some)
        stream.print("all windows", np.arange(len(stream.tests)))
        print(f"\none pass: {spent - stream.testing:.0f} CPU-seconds without its tests")


def ingested(log: Path, store: str, assign: list[str]) -> str:
    """Commit the log's windows to a store, and return it."""
    values, _ = assignments(assign)
    times = read_interactions(str(log), load_settings(overrides=values).pipeline).timestamps
    if times is None:
        raise typer.BadParameter(f"{log} has no times, which windows need")
    span = nice_window(float(times[-1] - times[0]) / 1000)
    window = [] if "window_seconds" in values.get("pipeline", {}) else [f"pipeline.window_seconds={span}"]
    own = [*window, "pipeline.user_shards=1", "pipeline.metrics_port=0"]
    options = [part for one in [*own, *assign] for part in ("--set", one)]
    printed("weir", "ingest", "--log", str(log), "--store", store, *options)
    return store


@dataclass(frozen=True, eq=False)
class Test:
    """What a window showed: the user of each case (C,), and of each method its metrics (C,), by name."""

    users: Ints
    values: dict[str, dict[str, Floats]]


@dataclass(eq=False)
class Stream:
    """The windows of a store in order; each tests the model and all peers of the events before it.

    A pane of late events is no test: peers have it with its window.
    """

    interactions: Interactions
    cases: int
    tests: list[Test] = field(default_factory=list)
    testing: float = 0.0
    """CPU seconds of the tests."""
    _sums: dict[str, dict[Settings, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))

    def test(self, state: TrainerState, manifest: WindowManifest, _: SharedWindow) -> None:
        """Rank events of a window by everything that came before it."""
        self.testing += cpu_of_call(partial(self._test, state, manifest))

    def _test(self, state: TrainerState, manifest: WindowManifest) -> None:
        times = self.interactions.timestamps
        assert times is not None  # noqa: S101 - a store has them
        start, stop = np.searchsorted(times, [manifest.start_ms, manifest.end_ms])
        if not start or manifest.pane:
            return
        train = np.arange(start)
        test = Evaluator.of(self.interactions, train, np.arange(start, stop), _RULES, at_most=self.cases)
        values = {MODEL: _metrics(test.rank_by(scores_of(state, self.interactions, test)))}
        values[POPULARITY] = _metrics(test.rank_by_popularity())
        self.tests.append(Test(test.cases.users, values | self._peers(train, test)))

    def _peers(self, train: Ints, test: Evaluator) -> dict[str, dict[str, Floats]]:
        """Return the metrics of each peer with the settings that were best on all windows before."""
        found = dict[str, dict[str, Floats]]()
        news = list[tuple[str, Settings, float]]()
        for candidate in self._candidates(train):
            values, settings = _metrics(test.rank_by(candidate.scores(test))), tuple(candidate.settings.items())
            if candidate.name not in found or settings == self._best(candidate.name):
                found[candidate.name] = values
            news.append((candidate.name, settings, float(values[METRICS[0]].sum())))
        for name, settings, value in news:
            self._sums[name][settings] += value
        return found

    def _best(self, name: str) -> Settings | None:
        sums = self._sums[name]
        return max(sums, key=sums.__getitem__) if sums else None

    def _candidates(self, train: Ints) -> Iterator[Candidate]:
        """Yield all candidates for some windows; then matrices with the best settings only, which is faster."""
        catalogue, settled = Catalogue(self.interactions, train), len(self.tests) >= _SETTLED
        neighbours = self._kept(ITEM_KNN, "neighbours") if settled else NEIGHBOURS
        yield from last_days(self.interactions, train)
        yield from item_knns(catalogue, map(int, neighbours), decay=True)
        yield from eases(catalogue, self._kept(EASE, "l2") if settled else L2, decay=True)

    def _kept(self, name: str, setting: str) -> list[float]:
        best = [self._best(one) for one in (name, name + DECAY)]
        return sorted({dict(one)[setting] for one in best if one is not None})

    def print(self, title: str, numbers: Ints) -> None:
        """Print a table of some windows, by their number."""
        some = [self.tests[number] for number in numbers]
        users = np.concatenate([one.users for one in some])
        print(f"\n### {title}: {len(some)} windows, {len(users):,} events\n")
        head("beside", *(part for metric in METRICS for part in (metric, "model - peer", "95 % interval")))
        for name in some[-1].values:
            row(name, *(cell for metric in METRICS for cell in _cells(some, users, name, metric)))


def _cells(some: list[Test], users: Ints, name: str, metric: str) -> list[str]:
    own, model = (np.concatenate([one.values[which][metric] for one in some]) for which in (name, MODEL))
    if name == MODEL:
        return [f"{own.mean():.4f}", "", ""]
    low, high = interval(model - own, users, generator=np.random.default_rng(0))
    return [f"{own.mean():.4f}", f"{(model - own).mean():+.4f}", f"{low:+.4f} to {high:+.4f}"]


def train(store: Store, config: TrainerConfig, stream: Stream) -> None:
    """Train on all windows once, as `weir train` does; the stream sees each window before the model learns it.

    Raises `typer.Abort` if the process is asked to stop: half a pass is no result.
    """
    with deterministic(), Workers.from_environment(config.device) as workers, ended_by_signals() as stop:
        state = TrainerState.fresh(config, workers.device)
        learning = learner(store, state, workers, stop, partial(stream.test, state))
        for manifest in windows(WindowLog(store), -1, workers, stop, follow=False, poll_seconds=1.0):
            if manifest is not None:
                learning.process_window(manifest)
        if stop.is_set():
            raise typer.Abort


def _metrics(ranked: Ranked) -> dict[str, Floats]:
    found = per_case(ranked, [20])
    return {metric: np.asarray(found[metric], np.float64) for metric in METRICS}


def scores_of(state: TrainerState, interactions: Interactions, test: Evaluator) -> Scores:
    """Return a function from numbers of cases to a streamed model's scores of all items, (n, I).

    Items without a row of their own score -inf, as those that a peer has not seen.
    """
    keys = ItemKeys(hash_strings([str(one) for one in interactions.item_ids]))
    rows = np.concatenate([np.full(FIRST_ITEM, PADDING), state.table.rows(keys)])
    state.tower.eval()
    with torch.no_grad():
        vectors = state.item_vectors(TableRows(rows))
        items = project(vectors[FIRST_ITEM:], state.config.tower)
    hidden = torch.from_numpy(rows[FIRST_ITEM:] < FIRST_ITEM)
    histories = test.past.histories(state.config.tower.history_length)

    @torch.no_grad()
    def scores(numbers: Tensor) -> Tensor:
        users = user_vectors(state.tower, state.config.tower, vectors, histories[numbers])
        return (users @ items.T).masked_fill_(hidden, -torch.inf)

    return scores


if __name__ == "__main__":
    app()
