"""The readers of a store, in this process: what each makes of it, as values that can be compared."""

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from tests.campaigns import real_store
from tests.pipelines import support
from tests.serving.support import histories_of
from weir import contracts
from weir.cli.main import app
from weir.contracts import BundleLog, EventClock, LogState, Store, UserKeys, hash_id
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.layout import open_layout
from weir.pipelines.runs.hash_collisions import KeyOwners
from weir.pipelines.sources.plan import InHand, make_plan
from weir.readers import discover
from weir.serving.bundles.watcher import BundleWatcher
from weir.serving.metrics import BundleMetrics
from weir.serving.monitor.results import recorded
from weir.serving.search.queries import ByHistory, ByUser, Query, Task
from weir.serving.search.retriever import Retriever
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.train import train


@dataclass
class Told:
    """What a reader said besides its answer: log records, and the text of an error."""

    texts: list[str] = field(default_factory=list)

    def names_one_of(self, names: tuple[str, ...]) -> bool:
        return any(name in text for text in self.texts for name in names)


class _Keeper(logging.Handler):
    def __init__(self, told: Told) -> None:
        super().__init__(logging.INFO)
        self.told = told

    def emit(self, record: logging.LogRecord) -> None:
        self.told.texts.append(logging.Formatter().format(record))


@contextmanager
def listening() -> Iterator[Told]:
    """Keep what is logged."""
    told, root = Told(), logging.getLogger()
    keeper, level = _Keeper(told), root.level
    root.addHandler(keeper)
    root.setLevel(logging.INFO)
    try:
        yield told
    finally:
        root.removeHandler(keeper)
        root.setLevel(level)


@dataclass(frozen=True)
class Readers:
    """All of them; ``folder/longer/log`` is the log with new events, `target` serves the whole store."""

    folder: Path
    target: str

    def pipeline(self, store: Store) -> Any:
        """What a run starts from: the plan of the next run, and the histories that it attaches."""
        settings = real_store.pipeline(self.folder / "longer")
        secret = open_layout(store, settings).key_secret
        state = LogState.open(store)
        plan = make_plan(
            store, settings, discover(settings.log), state, InHand(), secret=secret, flush=True, only_whole_lines=False
        )
        users = UserKeys(np.sort([hash_id(f"user-{n}", secret) for n in range(real_store.USERS)]))
        reader = contracts.UserHistories(store, settings.user_shards)
        reader.take_in(state.histories)
        found = reader.find(users)
        known, seen = found.records(), found.seen(np.arange(len(users)))
        owners = KeyOwners.load(store)
        owners.catch_up(state.cursor.sequence - 1)
        refused = {key: np.sort(positions).tolist() for key, positions in plan.run.refused.items()}
        histories = [column.tolist() for column in (*known, *seen)]
        starts = [(reading.partition.key, reading.start) for reading in plan.readings]
        return secret, state.model_dump(exclude={"snapshot"}), refused, histories, starts, owners.keys.tolist()

    def ingest(self, store: Store) -> Any:
        """A whole run, with new events: what is committed in the end."""
        ingest(store, real_store.pipeline(self.folder / "longer"), registry=CollectorRegistry())
        support.check_histories(store, real_store.pipeline(self.folder / "longer").history_length)
        return support.stored_events(store), LogState.open(store).dead

    def train(self, store: Store) -> Any:
        """Training to the end: every bit of the state, and what is promoted."""
        train(store, real_store.TRAINER)
        state = CheckpointLog(store).load(real_store.TRAINER, Workers())
        assert state is not None
        digest = hashlib.sha256()
        for name, tensor in sorted(state.tensors().items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        return digest.hexdigest(), BundleLog(store).current()

    def serve(self, store: Store) -> Any:
        """A server that starts: recommended ids and scores for fixed queries, of users and of histories."""
        watcher = BundleWatcher(store, BundleMetrics(CollectorRegistry()))
        watcher.refresh()
        if watcher.bundle is None:
            return None
        queries = [Query(ByUser(hash_id(f"user-{n}")), k=5) for n in range(real_store.USERS)]
        for n in range(5):
            ids = (f"item-{n}", f"item-{n + 7}")
            queries.append(Query(ByHistory(ids, np.array([hash_id(one) for one in ids], np.int64)), k=5))
        tasks = [Task(watcher.bundle, tuple(queries), exclude_seen=exclude_seen) for exclude_seen in (False, True)]
        hits = [hits for answer in Retriever(histories_of(store))(tasks) for hits in answer.hits]
        return watcher.bundle.version, [(one.ids, one.scores, one.fallback, one.seen_bounded) for one in hits]

    def monitor(self, store: Store) -> Any:
        """The monitor: the figures of every window."""
        real_store.measure(store, self.target)
        return [one.model_dump(exclude={"measured_at", "freshness"}) for one in recorded(store)]

    def inspect(self, store: Store) -> Any:
        """The command line's listings."""
        return self._listings(store, "windows", "bundles")

    def attribution(self, store: Store) -> Any:
        """What came of the lists that a server kept."""
        return self._listings(store, "served")

    def _listings(self, store: Store, *names: str) -> Any:
        answers, root = [], logging.getLogger()
        for listing in names:
            handlers, level = list(root.handlers), root.level
            command = ["inspect", listing, "--store", store.url, "--json"]
            result = CliRunner(env={"COLUMNS": "1000"}).invoke(app, command)
            # The command has sent log records to its own standard error.
            root.handlers, root.level = handlers, level
            root.info("%s", result.output)
            if result.exit_code and not isinstance(result.exception, SystemExit):
                assert result.exception is not None
                raise result.exception
            answers.append((result.exit_code, result.stdout))
        return answers

    def clock(self, store: Store) -> Any:
        """The replay's clock."""
        return EventClock.of(store)


Reader = Callable[[Store], Any]
