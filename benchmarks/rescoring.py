"""What the second phase adds in one pass over a stream, and what it costs.

    python -m benchmarks.rescoring LOG                                   # MovieLens-1M, say
    python -m benchmarks.rescoring LOG --events 300000 --set trainer.rescoring.learning_rate=3e-3

Each window tests the model before training: recall and NDCG of the first phase alone, and of its best candidates once
the second phase has scored them again. Another run spends more on the first phase instead: a second layer of the tower.
Differences are paired by event; their intervals are over users. CPU is that of training alone, and of a server's
answers to a batch of queries.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pyarrow.parquet as pq
import torch
import typer
from torch import Tensor

from benchmarks.harness import command_line, head, row
from benchmarks.streamed import Floats, ingested, scores_of, train
from weir.config import assignments, load_settings
from weir.contracts import BundleLog, ItemKeys, Store, UserKeys, WindowManifest, hash_strings
from weir.serving.known_users import KnownUsers, nothing_known
from weir.serving.loading import load_bundle
from weir.serving.queries import ByHistory, Query, Task
from weir.serving.retriever import Retriever
from weir.trainer.config import TrainerConfig
from weir.trainer.export import export_bundle
from weir.trainer.items.table import FIRST_ITEM, TableRows
from weir.trainer.offline.bootstrap import interval
from weir.trainer.offline.data import Interactions, Ints
from weir.trainer.offline.evaluator import Evaluator, Rules
from weir.trainer.offline.stored import read_store
from weir.trainer.ranking import user_vectors
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.shared_window import SharedWindow
from weir.trainer.towers import project

app = command_line(__doc__)

_CUTOFFS: Final = (10, 20)
_BATCHES: Final = (1, 8, 64)
_BLOCK: Final = 256
_REPEATS: Final = 20
FIRST, AGAIN, DEEPER = "first phase", "candidates scored again", "first phase, tower of two layers"


@app.command()
def main(
    log: Annotated[Path, typer.Argument(exists=True, help="the log, as Parquet")],
    assign: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as of `weir train`")] = None,
    cases: Annotated[int, typer.Option(min=1, help="events of each window that are ranked, at most")] = 300,
    events: Annotated[int, typer.Option(min=1, help="events of the log, at most")] = 1 << 40,
    skipped: Annotated[float, typer.Option(min=0, max=1, help="share of the stream before the first test")] = 0.3,
) -> None:
    """Print recall and NDCG of one phase, of two, and of one that costs more; and the CPU of each."""
    values, _ = assignments([*(assign or []), "trainer.rescoring.kind=mixture_of_logits"])
    both = load_settings(overrides=values).trainer
    plain = both.model_dump()
    one = TrainerConfig.model_validate(plain | {"rescoring": {"kind": "none"}})
    deeper = TrainerConfig.model_validate(one.model_dump() | {"tower": plain["tower"] | {"layers": 2}})
    with tempfile.TemporaryDirectory() as folder:
        store = Store(ingested(_first(log, events, folder), f"{folder}/store", assign or []))
        tests = [Trial(read_store(store.url), cases, skipped) for _ in range(3)]
        states = [_trained(store, config, test) for config, test in zip((one, both, deeper), tests, strict=True)]
        _print_recall(*tests)
        _print_serving(store, states[1], tests[1].interactions)


def _first(log: Path, events: int, folder: str) -> Path:
    table = pq.read_table(log)
    if events >= len(table):
        return log
    pq.write_table(table.sort_by("timestamp").slice(0, events), f"{folder}/log.parquet")
    return Path(f"{folder}/log.parquet")


def _trained(store: Store, config: TrainerConfig, test: "Trial") -> TrainerState:
    started = time.process_time()
    state = train(store, config, test)
    test.training = time.process_time() - started - test.testing
    return state


@dataclass(eq=False)
class Trial:
    """One run: the users of the events that were ranked, the rank of each by phase, and CPU seconds."""

    interactions: Interactions
    cases: int
    skipped: float
    users: list[Ints] = field(default_factory=list)
    ranks: dict[str, list[Ints]] = field(default_factory=dict)
    events: int = 0
    testing: float = 0.0
    training: float = 0.0

    def test(self, state: TrainerState, manifest: WindowManifest, found: SharedWindow) -> None:
        """Rank events of a window by everything that came before it."""
        started, times = time.process_time(), self.interactions.timestamps
        assert times is not None  # noqa: S101 - a store has them
        start, stop = np.searchsorted(times, [manifest.start_ms, manifest.end_ms])
        self.events += len(found)
        if start > self.skipped * len(times) and not manifest.pane:
            held = np.arange(start, stop)
            rules = Rules("interaction", _CUTOFFS)
            self._rank(state, Evaluator.of(self.interactions, np.arange(start), held, rules, at_most=self.cases))
        self.testing += time.process_time() - started

    @torch.no_grad()
    def _rank(self, state: TrainerState, test: Evaluator) -> None:
        first, again = scores_of(state, self.interactions, test), _scorer(state, self.interactions, test)
        self.users.append(test.cases.users)
        for at in range(0, len(test.cases), _BLOCK):
            numbers = np.arange(at, min(at + _BLOCK, len(test.cases)))
            wanted = torch.from_numpy(test.cases.relevant.values[numbers])
            scores, own = first(torch.from_numpy(numbers)), torch.arange(len(numbers))
            seen, place = (torch.from_numpy(part) for part in test.past.take(numbers))
            # What a case has seen is left out, but for its own item.
            kept = scores[own, wanted].clone()
            scores[place, seen] = -torch.inf
            scores[own, wanted] = kept
            best = scores.topk(min(state.config.rescoring.candidates, scores.shape[1])).indices
            self._note(FIRST, best == wanted[:, None])
            if again is not None:
                order = again(numbers, best).argsort(descending=True, stable=True)
                self._note(AGAIN, best.gather(1, order) == wanted[:, None])

    def _note(self, phase: str, hits: Tensor) -> None:
        ranks = torch.where(hits.any(1), hits.int().argmax(1) + 1, hits.shape[1] + 1)
        self.ranks.setdefault(phase, []).append(ranks.numpy())

    def metrics(self, phase: str) -> dict[str, Floats]:
        """Return recall and NDCG of each event."""
        ranks = np.concatenate(self.ranks[phase])
        found = {f"recall@{k}": (ranks <= k).astype(np.float64) for k in _CUTOFFS}
        return found | {f"NDCG@{k}": (ranks <= k) / np.log2(1 + ranks) for k in _CUTOFFS}


def _scorer(
    state: TrainerState, interactions: Interactions, test: Evaluator
) -> Callable[[Ints, Tensor], Tensor] | None:
    """Return what scores candidates (n, N), by the code of their items, for cases (n,); None without a second phase."""
    second = state.second
    if second is None:
        return None
    keys = ItemKeys(hash_strings([str(one) for one in interactions.item_ids]))
    rows = np.concatenate([np.arange(FIRST_ITEM), state.table.rows(keys)])
    vectors, tower = state.item_vectors(TableRows(rows)), state.config.tower
    items, histories = project(vectors[FIRST_ITEM:], tower), test.past.histories(tower.history_length)

    def scores(numbers: Ints, candidates: Tensor) -> Tensor:
        users = user_vectors(state.tower, tower, vectors, histories[torch.from_numpy(numbers)])
        found: Tensor = second.scorer(users, items, candidates)
        return found

    return scores


def _print_recall(one: Trial, both: Trial, deeper: Trial) -> None:
    same = all(np.array_equal(*pair) for pair in zip(one.ranks[FIRST], both.ranks[FIRST], strict=True))
    users, plain = np.concatenate(one.users), one.metrics(FIRST)
    print(f"\n{len(one.users)} windows, {len(users):,} events; the first phase is the same with a second one: {same}\n")
    head("", *(part for metric in plain for part in (metric, "difference", "95 % interval")), "us per example")
    rows = ((FIRST, one, FIRST), (AGAIN, both, AGAIN), (DEEPER, deeper, FIRST))
    for name, trial, phase in rows:
        cells: list[object] = []
        for metric, own in trial.metrics(phase).items():
            apart = own - plain[metric]
            low, high = interval(apart, users, generator=np.random.default_rng(0))
            difference = ["", ""] if name == FIRST else [f"{apart.mean():+.4f}", f"{low:+.4f} to {high:+.4f}"]
            cells += [f"{own.mean():.4f}", *difference]
        row(name, *cells, f"{1e6 * trial.training / trial.events:.0f}")


class _Nobody:
    """Histories of nobody: the queries bring their own."""

    def look_up(self, users: UserKeys, asked: Any) -> KnownUsers:  # noqa: ARG002 - the protocol's
        """Return that nothing is known."""
        return nothing_known(len(users), 0)


def _print_serving(store: Store, state: TrainerState, interactions: Interactions) -> None:
    """Print the CPU of a server's answers, k = 20, in batches of several sizes."""
    bundle = load_bundle(BundleLog(store), export_bundle(store, state).version)
    newest = [str(one) for one in interactions.item_ids[interactions.items[-_BATCHES[-1] * 60 :]]]
    histories = [newest[at : at + 50] for at in range(0, 60 * _BATCHES[-1], 60)]
    sources = [ByHistory(tuple(one), ItemKeys(hash_strings(one))) for one in histories]
    print(f"\n{bundle.items:,} items, {bundle.rescored} candidates, CPU-microseconds per query\n")
    head("queries in a batch", "first phase", "both phases")
    for size in _BATCHES:
        tasks = [Task(bundle, (Query(source, 20),)) for source in sources[:size]]
        row(size, *(f"{_microseconds(Retriever(_Nobody(), rescored=some), tasks):.0f}" for some in (0, None)))


def _microseconds(retriever: Retriever, tasks: list[Task]) -> float:
    retriever(tasks)
    started = time.process_time()
    for _ in range(_REPEATS):
        retriever(tasks)
    return 1e6 * (time.process_time() - started) / _REPEATS / len(tasks)


if __name__ == "__main__":
    app()
