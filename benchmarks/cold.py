"""Recall of items without clicks, answered from their features alone, on a generated log.

    python -m benchmarks.cold quality [--seeds 3]
    python -m benchmarks.cold cost          # what they add to a search, CPU of this process, one thread

*quality*: users keep to their taste, a genre and a level of prices, nine times in ten, and take any of its items alike;
every window brings new items. A tenth of all items is held back: only the catalogue names them. Asked are the events of
the last window, which no model has seen, on items of the windows before it, with each user's history of other items. A
taste has eighteen items, so recall@20 is at most about .9.

Rows: the server with the held-back items as cold ones; the same model without them; a model trained on their events
too. *share* is that of held-back items among all answers.
"""

import json
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

import faiss
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from prometheus_client import CollectorRegistry

from benchmarks.harness import command_line, head, row
from benchmarks.states import learner
from weir.contracts import PADDING_KEY, BundleLog, ItemKeys, Store, WindowLog, hash_ids
from weir.contracts.interactions.catalogue import Catalogue
from weir.contracts.interactions.catalogue_files import decode_catalogue
from weir.contracts.interactions.features import FeatureNames
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.index.cold import ColdItems, absent_entries
from weir.serving.index.index import ExactIndex
from weir.trainer.export import export_bundle
from weir.trainer.ranks.workers import Workers, deterministic
from weir.trainer.settings.trainer import NegativesConfig, OptimizerConfig, TowerConfig, TrainerConfig
from weir.trainer.state.trainer_state import TrainerState

app = command_line(__doc__)
HOUR: Final = 3600
ORIGIN: Final = 1_700_000_000 // HOUR * HOUR
WINDOWS, EVENTS, USERS = 10, 1200, 400
GENRES, LEVELS, NEW = 20, 2, 2
HISTORY: Final = 10
K: Final = 20
HELD: Final = 0.1
NAMES: Final = FeatureNames(categorical=("genre",), dense=("price",))


class Event(NamedTuple):
    """A click, in a window."""

    user: str
    item: str
    window: int
    second: int


class Case(NamedTuple):
    """An event of the last window: what its user had clicked before, and the item."""

    history: list[str]
    item: str


@app.command()
def cost(dimension: int = 64, k: int = 100) -> None:
    """Print the CPU of comparing cold items, in microseconds per query."""
    faiss.omp_set_num_threads(1)
    random, batches = np.random.default_rng(0), (1, 8, 64)
    head("cold items", *(f"{batch} queries at a time" for batch in batches))
    for items in (100, 1000, 10_000, 100_000):
        index = ExactIndex(random.standard_normal((items, dimension), np.float32))
        queries = random.standard_normal((64, dimension), np.float32)
        spent = []
        for batch in batches:
            index.search(queries[:batch], k)
            started, done = time.process_time(), 0
            while time.process_time() < started + 0.5:
                index.search(queries[:batch], k)
                done += batch
            spent.append(1e6 * (time.process_time() - started) / done)
        row(items, *(f"{us:.0f}" for us in spent))


@app.command()
def quality(seeds: int = 3) -> None:
    """Print a row for each way and seed."""
    head("items that are held back", "seed", "recall@20 of theirs", "recall@20 of others", "share of answers")
    for seed in range(seeds):
        events = drawn(seed)
        every = sorted({event.item for event in events if event.window < WINDOWS - 1})
        held = set(np.random.default_rng(seed + 1).choice(every, int(HELD * len(every)), replace=False).tolist())
        cases = [case for case in asked(events, held) if case.item in every]
        about = catalogue(every)
        unseen = trained([event for event in events if event.item not in held], seed)
        cold = unseen.with_cold(ColdItems.of(unseen, about, absent_entries(about, unseen), len(every)))
        seen = trained(events, seed)
        for name, bundle in (("cold", cold), ("left out", unseen), ("trained", seen)):
            row(name, seed, *(f"{figure:.3f}" for figure in figures(bundle, cases, held)))


def drawn(seed: int) -> list[Event]:
    """Return the events, in order."""
    draw = np.random.default_rng(seed)
    tastes, found = draw.integers(GENRES * LEVELS, size=USERS), []
    for window in range(WINDOWS):
        for second in np.sort(draw.integers(HOUR, size=EVENTS)).tolist():
            user = int(draw.integers(USERS))
            taste = int(tastes[user] if draw.random() < 0.9 else draw.integers(GENRES * LEVELS))
            item = f"{draw.integers(window + 1)}-{taste}-{draw.integers(NEW)}"
            found.append(Event(f"u{user}", item, window, second))
    return found


def features(item: str) -> dict[str, object]:
    """Return what is known of an item."""
    _, taste, number = map(int, item.split("-"))
    return {"genre": [f"genre {taste % GENRES}"], "price": 10.0 + 50.0 * (taste // GENRES) + number}


def catalogue(items: list[str]) -> Catalogue:
    """Return a catalogue of items, as a server reads it."""
    lines = (json.dumps({"item_id": item, **features(item)}) for item in items)
    return decode_catalogue("items.jsonl", "\n".join(lines).encode(), NAMES)


def asked(events: list[Event], held: set[str]) -> list[Case]:
    """Return the cases, with histories of items that are not held back."""
    known: dict[str, list[str]] = defaultdict(list)
    cases = []
    for event in events:
        if event.window == WINDOWS - 1 and known[event.user]:
            cases.append(Case(known[event.user][-HISTORY:], event.item))
        elif event.item not in held:
            known[event.user].append(event.item)
    return cases


def trained(events: list[Event], seed: int) -> LoadedBundle:
    """Return the bundle of a model that has learned all windows but the last."""
    with tempfile.TemporaryDirectory() as folder, deterministic():
        log, store = Path(folder) / "log.jsonl", Store(f"{folder}/store")
        log.write_text("".join(line(event) for event in events if event.window < WINDOWS - 1))
        settings = PipelineConfig(
            log=str(log), window_seconds=HOUR, history_length=HISTORY, metrics_port=0, item_features=NAMES
        )
        ingest(store, settings, registry=CollectorRegistry())
        config = TrainerConfig(
            device="cpu",
            seed=seed,
            batch_size=128,
            tower=TowerConfig(dimension=16, history_length=HISTORY),
            negatives=NegativesConfig(uniform=64),
            optimizer=OptimizerConfig(learning_rate=0.01, embedding_memory=1.0),
        )
        state = TrainerState.fresh(config)
        learning = learner(store, state, Workers(), threading.Event())
        for manifest in WindowLog(store).committed():
            learning.process_window(manifest)
        return load_bundle(BundleLog(store), export_bundle(store, state).version)


def line(event: Event) -> str:
    """Return an event as a line of the log."""
    fields = {"user_id": event.user, "item_id": event.item, "timestamp": ORIGIN + event.window * HOUR + event.second}
    return json.dumps(fields | features(event.item)) + "\n"


def figures(bundle: LoadedBundle, cases: list[Case], held: set[str]) -> tuple[float, float, float]:
    """Return the recall of held-back and of other items, and the share of the former among the answers."""
    histories = np.full((len(cases), HISTORY), PADDING_KEY, np.int64)
    for place, case in zip(histories, cases, strict=True):
        place[HISTORY - len(case.history) :] = hash_ids(pa.array(case.history))
    rows = bundle.exact.search(bundle.users(ItemKeys(histories)), K).rows
    answers = [bundle.ids[found].tolist() for found in rows]
    hits = np.array([case.item in answer for case, answer in zip(cases, answers, strict=True)])
    is_held: npt.NDArray[np.bool_] = np.array([case.item in held for case in cases])
    share = np.mean([item in held for answer in answers for item in answer])
    return float(hits[is_held].mean()), float(hits[~is_held].mean()), float(share)


if __name__ == "__main__":
    app()
