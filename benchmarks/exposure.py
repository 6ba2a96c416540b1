"""Whether what was shown and not chosen makes a better model, where the truth is known.

    python -m benchmarks.exposure              # all rows, five seeds, Markdown tables
    python -m benchmarks.exposure --seeds 1    # a first look

The catalogue, the listeners and the law of what they play next are those of the demo (`weir.demo`). For ten days they
play what they like. A model is trained on that and serves lists of 20 for fifteen days: of 10 plays, 7 are then clicks
on a list, or nothing. Two ways to click: *cascade*, from the top down, until something is good enough or patience ends;
*position*, where every place k is looked at with probability 1 / k, whatever lies above. The lists go to the store as a
server writes them, the clicks to a log with their tokens, and the pipeline joins both. Then models are trained from
nothing on all windows, with and without exposure.

The test: what listeners play next, by the law alone, in the five days after. Recall@20 counts what they played; NDCG@20
compares the order of the whole list with their true preferences. Differences are paired by seed; intervals are 95 %,
Student's t over seeds.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import pyarrow as pa
import torch
import typer
from prometheus_client import CollectorRegistry
from scipy import stats

from benchmarks.demo_truth import Truth
from benchmarks.harness import F64, I64, command_line, head, row
from weir.contracts import PADDING_KEY, ItemKeys, Store, WindowLog, hash_ids
from weir.contracts.served import SERVED_SCHEMA, new_segment, served_token, write_served
from weir.demo.generator import _START_MS, GENERATED
from weir.pipelines.config import PipelineConfig
from weir.pipelines.ingest import ingest
from weir.trainer.config import TrainerConfig
from weir.trainer.items.table import TableRows
from weir.trainer.ranking import user_vectors
from weir.trainer.ranks.workers import Workers, deterministic
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.stream.learner import Learner
from weir.trainer.stream.metrics import TrainerMetrics
from weir.trainer.stream.progress import ProgressObserver
from weir.trainer.towers import project

app = command_line(__doc__)

USERS: Final = 1200
ITEMS: Final = 2000
EVENTS: Final = 80_000
LOGGED, SERVED, DAYS = 10, 25, 30
"""Days until the model serves, until the test starts, and in all."""
SHARE: Final = 0.7
SHOWN: Final = 20
HISTORY: Final = 20
KEPT: Final = 8
DAY_MS: Final = 86_400_000
PATIENCE: Final = 0.9

Clicks = Literal["cascade", "position"]
ROWS: Final[dict[str, dict[str, Any]]] = {
    "off": {},
    "4 items": {"exposed": 4},
    "8 items": {"exposed": 8},
    "off, history unmasked": {"mask_history": False},
    "4 items, history unmasked": {"exposed": 4, "mask_history": False},
}
"""Settings of the negatives; each row is compared with the one that is off and else the same."""


@dataclass
class Served:
    """A model that serves: the best items of each history."""

    state: TrainerState
    keys: ItemKeys

    @torch.no_grad()
    def __post_init__(self) -> None:
        self.state.tower.eval()
        vectors = self.state.item_vectors(TableRows(self.state.table.live))
        self.projected = project(vectors, self.state.config.tower)
        place = {key: item for item, key in enumerate(self.keys.tolist())}
        self.items = np.array([place[key] for key in self.state.table.keys[self.state.table.live].tolist()])
        self.read = self.state.item_vectors(torch.arange(self.state.table.capacity))

    @torch.no_grad()
    def lists(self, histories: I64, k: int = SHOWN) -> I64:
        """Return the best k items (n, k) for histories (n, L) of items, -1 where there is none."""
        keys = np.append(self.keys, PADDING_KEY)[histories]
        rows = torch.from_numpy(self.state.table.rows(ItemKeys(keys)))
        users = user_vectors(self.state.tower, self.state.config.tower, self.read, rows)
        found: I64 = self.items[(users @ self.projected.T).topk(k).indices.numpy()]
        return found


@dataclass
class World:
    """Listeners over time: their histories (u, L), newest last, and last labels (u,); `lines` are what they did."""

    truth: Truth
    rng: np.random.Generator
    clicks: Clicks
    lines: list[dict[str, Any]] = field(default_factory=list)
    tests: list[tuple[I64, ...]] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        activity = self.truth.users.activity
        self.user = np.repeat(np.arange(USERS), self.rng.multinomial(EVENTS, activity))
        self.time = np.sort(self.rng.integers(0, DAYS * DAY_MS, EVENTS))
        self.user = self.user[self.rng.permutation(EVENTS)]
        self.history, self.label = np.full((USERS, HISTORY), -1), np.full(USERS, -1)

    def live(self, first: int, last: int, model: Served | None = None, store: Store | None = None) -> None:
        """Let the days [first, last) pass: listeners play, or, with a model, mostly use its lists."""
        for start in range(first * 12, last * 12):
            inside = slice(*np.searchsorted(self.time, [start * DAY_MS // 12, (start + 1) * DAY_MS // 12]))
            segment, rows = new_segment(_START_MS / 1000 + start * 7200), list[dict[str, Any]]()
            for users, times in _rounds(self.user[inside], self.time[inside]):
                listens = self.rng.random(len(users)) < SHARE if model is not None else np.zeros(len(users), np.bool_)
                self._play(users[~listens], times[~listens], is_test=first >= SERVED)
                if model is not None and listens.any():
                    rows += self._use(model, users[listens], times[listens], segment, len(rows))
            if store is not None and rows:
                write_served(store, segment, pa.Table.from_pylist(rows, SERVED_SCHEMA))

    def _play(self, users: I64, times: I64, *, is_test: bool) -> None:
        preference = self.truth.preference(users, self.label[users], times // DAY_MS)
        drawn = np.minimum((preference.cumsum(1) < self.rng.random((len(users), 1))).sum(1), preference.shape[1] - 1)
        if is_test:
            self.tests.append((users, self.label[users], times // DAY_MS, self.history[users].copy(), drawn))
        for user, time, item in zip(users.tolist(), times.tolist(), drawn.tolist(), strict=True):
            self._note(user, time, item, None)

    def _use(self, model: Served, users: I64, times: I64, segment: str, first: int) -> Iterator[dict[str, Any]]:
        lists = model.lists(self.history[users])
        preference = self.truth.preference(users, self.label[users], times // DAY_MS)
        appeal = np.take_along_axis(preference, lists, 1) / preference.max(1, keepdims=True)
        for place, (user, time) in enumerate(zip(users.tolist(), times.tolist(), strict=True)):
            token = served_token("v0", segment, f"{first + place:016x}")
            shown = lists[place].tolist()
            clicked = self._clicked(appeal[place])
            self.outcomes.update(["lists", *(["lists with a click"] if clicked else [])])
            for number, at in enumerate(clicked):
                self._note(user, time + 1000 * number, shown[at], token)
            yield {
                "attribution_token": token,
                "query": 0,
                "user_key": int(hash_ids(pa.array([self.truth.users.ids[user]]))[0]),
                "served_at": _START_MS + time,
                "bundle_version": "v0",
                "fallback": False,
                "item_ids": [str(self.truth.catalogue.ids.ravel()[item]) for item in shown],
            }

    def _clicked(self, appeal: F64) -> list[int]:
        """Return the clicked places of a list, given how good its items are next to the best of all, (k,)."""
        if self.clicks == "position":
            seen = self.rng.random(len(appeal)) < 1 / np.arange(1, len(appeal) + 1)
            return [int(at) for at in np.flatnonzero(seen & (self.rng.random(len(appeal)) < appeal))]
        for at, good in enumerate(appeal):
            if self.rng.random() < good:
                return [at]
            if self.rng.random() > PATIENCE:
                return []
        return []

    def _note(self, user: int, time: int, item: int, token: str | None) -> None:
        self.history[user] = np.append(self.history[user][1:], item)
        self.label[user] = item // self.truth.size
        users, ids = self.truth.users.ids, self.truth.catalogue.ids.ravel()
        line = {"user_id": str(users[user]), "item_id": str(ids[item]), "timestamp": _START_MS + time}
        self.lines.append(line | {"event_type": "play"} | ({"attribution_token": token} if token else {}))


def _rounds(users: I64, times: I64) -> Iterator[tuple[I64, I64]]:
    """Yield events of different users together: the first of each, the second, and so on."""
    order = np.argsort(users, kind="stable")
    starts = np.searchsorted(users[order], users[order])
    turn = np.empty(len(users), np.int64)
    turn[order] = np.arange(len(users)) - starts
    for number in range(int(turn.max(initial=-1)) + 1):
        yield users[turn == number], times[turn == number]


class _Never:
    requested = False


def trained(store: Store, seed: int, negatives: dict[str, Any]) -> TrainerState:
    """Return a model of all windows of a store."""
    config = TrainerConfig.model_validate(
        {"seed": seed, "device": "cpu", "evaluation_examples": 1, "negatives": negatives}
        | {"tower": {"history_length": HISTORY}, "batch_size": 512, "optimizer": {"embedding_memory": 1.0}}
    )
    with tempfile.TemporaryDirectory() as folder, deterministic():
        scratch, workers = Store(folder), Workers()
        state = TrainerState.fresh(config, workers.device)
        observer = ProgressObserver(scratch, TrainerMetrics(), is_first=False)
        learner = Learner(state, WindowLog(store), workers, _Never(), observer, CheckpointLog(scratch, 1))
        for manifest in WindowLog(store):
            learner.process_window(manifest)
    return state


def _tested(model: Served, world: World) -> tuple[float, float]:
    """Return Recall@20 of what was played, and NDCG@20 by true preference, means over the events of the test."""
    discounts = 1 / np.log2(np.arange(2, SHOWN + 2))
    hits, gains = [], []
    for users, labels, days, histories, played in world.tests:
        lists, preference = model.lists(histories), world.truth.preference(users, labels, days)
        hits.append((lists == played[:, None]).any(1))
        best = -np.sort(-preference, 1)[:, :SHOWN]
        gains.append(np.take_along_axis(preference, lists, 1) @ discounts / (best @ discounts))
    return float(np.concatenate(hits).mean()), float(np.concatenate(gains).mean())


def one_seed(seed: int, clicks: Clicks) -> dict[str, tuple[float, float]]:
    """Return both figures of every row for one world."""
    with tempfile.TemporaryDirectory() as folder:
        store, log = Store(f"{folder}/store"), Path(folder, "log")
        log.mkdir()
        pipeline = PipelineConfig.model_validate(
            GENERATED | {"log": str(log), "exposed_items": KEPT, "history_length": HISTORY, "metrics_port": 0}
        )
        world = World(Truth(seed, USERS, ITEMS, DAYS), np.random.default_rng(1000 + seed), clicks)
        world.live(0, LOGGED)
        _bring_in(world, store, pipeline, log / "0.jsonl")
        model = Served(trained(store, seed, {}), world.truth.keys)
        world.live(LOGGED, SERVED, model, store)
        _bring_in(world, store, pipeline, log / "1.jsonl")
        world.live(SERVED, DAYS)
        for manifest in WindowLog(store):
            world.outcomes.update(manifest.exposure.model_dump())
        print(f"<!-- {clicks}, seed {seed}: {dict(+world.outcomes)} -->", flush=True)
        found = {"the model that served": _tested(model, world)}
        for name, negatives in ROWS.items():
            found[name] = _tested(Served(trained(store, seed, negatives), world.truth.keys), world)
            print(f"<!-- {name}: recall {found[name][0]:.4f}, NDCG {found[name][1]:.4f} -->", flush=True)
    return found


def _bring_in(world: World, store: Store, config: PipelineConfig, file: Path) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in world.lines))
    world.lines = []
    ingest(store, config, registry=CollectorRegistry())


def _interval(values: F64) -> str:
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return f"{values.mean():+.4f} ± {half:.4f}"


@app.command()
def main(
    seeds: Annotated[int, typer.Option(help="worlds, each with a seed of its own")] = 5,
    clicks: Annotated[str, typer.Option(help="cascade, position, or both")] = "both",
) -> None:
    """Train and compare."""
    for way in ("cascade", "position") if clicks == "both" else (clicks,):
        found = [one_seed(seed, way) for seed in range(seeds)]
        print(f"\nClicks by {way}, {seeds} seeds:\n")
        head("row", "Recall@20", "against off", "NDCG@20", "against off")
        for name in found[0]:
            base = "off, history unmasked" if "unmasked" in name else "off"
            figures, off = (np.array([one[key] for one in found]) for key in (name, base))
            against = [_interval(one) for one in (figures - off).T]
            row(name, f"{figures[:, 0].mean():.4f}", against[0], f"{figures[:, 1].mean():.4f}", against[1])


if __name__ == "__main__":
    app()
