"""What publishing costs, from the export to the answer, against what has changed and what is stored.

    OMP_NUM_THREADS=1 python -m benchmarks.publishing deltas                   # to a server: 200,000 items, 23 rounds
    OMP_NUM_THREADS=1 python -m benchmarks.publishing exports                  # the trainer alone; 8 GB of memory
    OMP_NUM_THREADS=1 python -m benchmarks.publishing takes                    # the server alone; 8 GB of memory
    OMP_NUM_THREADS=1 python -m benchmarks.publishing complete                 # all items, by ranks; 20 minutes, 8 GB
    OMP_NUM_THREADS=1 python -m benchmarks.publishing bound                    # recall by `trainer.publish_bound`

In `deltas`, `exports` and `takes`, items lie around 2,000 topics, which drift. Each round a share of the items moves to
its topic, and the trainer's own export publishes the round. All but `deltas` train lists in two rounds on 16 vectors
each, since they measure no recall. CPU is user and system time.
"""

import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Self

import faiss
import numpy as np
import numpy.typing as npt
import torch
import typer
from prometheus_client import CollectorRegistry

from benchmarks.harness import (
    F32,
    F64,
    I64,
    Peak,
    Server,
    command_line,
    cpu_of_call,
    cpu_seconds,
    figures_of_ranks,
    head,
    new_store,
    printed,
    recall,
    restart_peak,
    row,
    started,
    status,
    unit,
)
from benchmarks.states import admit, filled, item_id, learner
from weir.config import Settings
from weir.contracts import (
    BundleLog,
    BundleManifest,
    ItemKeys,
    Layout,
    Store,
    StoreFormat,
    WindowLog,
    WindowManifest,
    ensure_format,
    hash_ids,
)
from weir.demo.generator import generate
from weir.demo.replay import open_log
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import Memory, load_bundle
from weir.serving.bundles.watcher import BundleWatcher, DeltaPolicy
from weir.serving.client import RetrievalClient, by_embedding
from weir.serving.metrics import BundleMetrics
from weir.trainer.export import export_bundle
from weir.trainer.export.index import Assigned, Clusters
from weir.trainer.export.onnx_models import AwaitedError
from weir.trainer.export.planner import ExportPlanner
from weir.trainer.export.servable import MOST, Cases, RecentCases, Servable
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TowerConfig, TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.positives import SharedWindow
from weir.trainer.towers.user_features import UserLines
from weir.up.prepare import demo_settings

app = command_line(__doc__)
Items = Annotated[list[int], typer.Option(help="items; may be repeated")]
Shares = Annotated[list[float], typer.Option("--share", help="of the items that move in a round; may be repeated")]

TOPICS: Final = 2000
DIMENSION: Final = 64
SPREAD: Final = 0.6
"""Length of what tells an item from its topic, relative to the topic's vector."""
DRIFT: Final = 0.03
"""The same of what a topic moves in a round."""
NEW_TOPICS: Final = 20
NEW_ROUNDS: Final = 3
QUERIES: Final = 200
DEPTH: Final = 100
SHARES: Final = [0.001, 0.01, 0.1]
MOVED: Final = 2000
"""Items that each delta moves."""
EXPORTS: Final = 4
"""Rounds for each share."""
DELTAS: Final = 8
HOW: Final = ("clone", "in_place")
"""Ways of a server to take a delta."""
WAYS: Final = ("while none trains", "beside the stream")
MOMENT: Final = 0.5
"""Seconds of steps between two looks whether the bundle is made."""
K: Final = 20
BOUNDS: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)


class World:
    """Topics (t, d) of length 1 that drift; items and queries lie around them."""

    def __init__(self) -> None:
        self.draw = np.random.default_rng(0)
        self.topics = self.noise(TOPICS)

    def noise(self, count: int) -> F32:
        """Return random vectors of length 1."""
        return unit(self.draw.standard_normal((count, DIMENSION), np.float32))

    def drift(self) -> None:
        """Move every topic."""
        self.topics = unit(self.topics + DRIFT * self.noise(len(self.topics)))

    def around(self, topics: I64) -> F32:
        """Return a vector around each of the topics (n,)."""
        return unit(self.topics[topics] + SPREAD * self.noise(len(topics)))


class Newest(RecentCases):
    """What the gate compares on, and lists are judged by: events of the round instead of a store's windows."""

    cases: Cases

    def up_to(self, sequence: int) -> Cases:  # noqa: ARG002 - a round has no number
        """Return the cases of the round."""
        return self.cases


@dataclass
class Stream:
    """A trainer's state, whose items move round by round, and what was exported of it."""

    store: Store
    items: int
    config: TrainerConfig
    world: World
    planner: ExportPlanner = field(default_factory=ExportPlanner)
    newest: str = ""
    vector: F32 = field(init=False)

    def __post_init__(self) -> None:
        self.state = filled(self.config, self.items)
        self.topic = self.world.draw.integers(0, TOPICS, self.items)
        self.place(np.arange(self.items))
        self.recent = Newest(self.store, self.config)

    @classmethod
    def of(cls, store: Store, items: int, **settings: Any) -> Self:
        """Make a store, and a state of so many items, of a trainer with these settings."""
        ensure_format(store, StoreFormat(layout=Layout(window_ms=3_600_000, user_shards=1, sketch={})))
        tower = TowerConfig(kind="mean_pooling", dimension=DIMENSION, history_length=4)
        config = TrainerConfig(device="cpu", tower=tower, gate_tolerance=1.0, **settings)
        return cls(store, items, config, World())

    def place(self, chosen: I64) -> None:
        """Put items where their topics are."""
        for some in np.array_split(chosen, len(chosen) // 100_000 + 1):
            rows = self.state.live[torch.from_numpy(some)]
            self.state.embeddings.weight[rows] = torch.from_numpy(self.world.around(self.topic[some]))
            self.state.embeddings.touched.mark(rows.numpy())
        self.state.position.step += 1

    def move(self, count: int) -> None:
        """Let topics drift, and so many items go to where their topics are."""
        self.world.drift()
        self.place(self.world.draw.choice(self.items, count, replace=False))

    def come(self) -> None:
        """Add an item that is unlike all others."""
        self.newest = item_id(len(self.state.table))
        ids = np.array([self.newest], object)
        admit(self.state, ItemKeys(hash_ids([self.newest])), ids, 0)
        self.topic = np.append(self.topic, 0)
        self.vector = self.world.noise(1)[0]
        self.state.embeddings.weight[self.state.live[-1]] = torch.from_numpy(self.vector)
        self.state.counts.read_all()

    def export(self, topics: I64) -> tuple[BundleManifest, float]:
        """Publish the items, judged by events of these topics; return the bundle and the CPU-seconds."""
        chosen = np.flatnonzero(np.isin(self.topic, topics))[: 4 * QUERIES]
        keys = self.state.table.keys[self.state.table.live]
        items, histories = ItemKeys(keys[chosen]), ItemKeys(keys[chosen][:, None])
        self.recent.cases = Cases(items, histories, UserLines.nothing(len(items)))
        before = time.process_time()
        made = export_bundle(self.store, self.state, self.recent, planner=self.planner)
        return made, time.process_time() - before


def train_quickly() -> None:
    """Let the lists of indexes be trained in little time; for this process."""
    original = Clusters.trained

    def quick(empty: Any, kind: str, vectors: F32) -> tuple[Clusters, Assigned]:
        empty.cp.niter, empty.cp.max_points_per_centroid, empty.cp.min_points_per_centroid = 2, 16, 1
        return original(empty, kind, vectors)

    Clusters.trained = quick  # type: ignore[method-assign]


@dataclass
class Round:
    """What one round showed: `recall` of the index, and that of the `own` best, `found`: as many as a topic has."""

    made: BundleManifest
    export: float
    apply: float
    visible: float
    query: float
    recall: float
    own: int
    found: float


def megabytes(bundle: BundleManifest) -> float:
    """Return the size of a bundle's files."""
    return sum(file.size for file in bundle.files) / 1e6


@dataclass
class Reader:
    """Reads each bundle of a store as a server that starts; `first` is the first one."""

    stream: Stream
    first: LoadedBundle | None = None

    def found(self, made: BundleManifest, topics: I64) -> tuple[float, float, int, float]:
        """Return the CPU of a query against that of the first bundle, then recalls as a `Round` has them."""
        stream, bundle = self.stream, load_bundle(BundleLog(self.stream.store), made.version)
        self.first = self.first or bundle
        queries = stream.world.around(stream.world.draw.choice(topics, QUERIES))
        rows, exact = bundle.index.search(queries, DEPTH).rows, bundle.exact.search(queries, DEPTH).rows
        own = min(int(np.isin(stream.topic, topics).sum()) // len(topics), DEPTH)
        at_first, now = (query_cost(one, queries) for one in (self.first, bundle))
        return now / at_first, recall(rows, exact), own, recall(rows[:, :own], exact[:, :own])


def query_cost(bundle: LoadedBundle, queries: F32) -> float:
    """Return the CPU-seconds of queries (n, d), one by one, after all at once."""
    bundle.index.search(queries, DEPTH)
    return cpu_of_call(lambda: [bundle.index.search(query[None], DEPTH) for query in queries])


def seconds_until(store: Store, client: RetrievalClient, version: str, item: str, vector: F32) -> float:
    """Ask with an item's vector until it is the answer; return the seconds since its version was promoted."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        answer = client.retrieve([by_embedding(vector.tolist(), 1)])
        if answer.bundle_version == version and answer.hits[0].item_ids == [item]:
            return time.time() - store.modified("bundles/CURRENT")
        time.sleep(0.005)
    raise RuntimeError(f"{item} of {version} does not become visible")


def rounds_of(stream: Stream, reader: Reader, server: Server, share: float, rounds: int) -> Iterator[Round]:
    """Yield the rounds with drift, then those with new topics."""
    world, count = stream.world, round(share * stream.items)
    with RetrievalClient(server.target, timeout=60) as client:
        for number in range(rounds + NEW_ROUNDS):
            topics = np.arange(TOPICS)
            if number < rounds:
                stream.move(count)
            else:
                if number == rounds:
                    world.topics = np.concatenate([world.topics, world.noise(NEW_TOPICS)])
                topics = np.arange(TOPICS, TOPICS + NEW_TOPICS)
                chosen = world.draw.choice(stream.items, count, replace=False)
                stream.topic[chosen] = world.draw.choice(topics, count)
                stream.place(chosen)
            stream.come()
            before = cpu_seconds(server.pid)
            made, export = stream.export(topics)
            visible = seconds_until(stream.store, client, made.version, stream.newest, stream.vector)
            apply = cpu_seconds(server.pid) - before
            yield Round(made, export, apply, visible, *reader.found(made, topics))


@app.command()
def deltas(
    items: Items = [200_000],  # noqa: B006 - typer copies it
    shares: Shares = [0.01],  # noqa: B006
    rounds: Annotated[int, typer.Option(help="rounds with drift")] = 20,
    *,
    how: Annotated[str, typer.Option("--deltas", help="how the server takes them: auto, clone or in_place")] = "auto",
) -> None:
    """Measure what a change of some items costs from the export to the answer of a server of its own process.

    A new item comes with each round; in the last three rounds the items move to 20 new topics. Medians over the rounds
    that were deltas. *apply*: CPU of the server from one version to the next, including the wait for the export and the
    client's calls. *visible*: from the promotion to the first answer that has the new item, by a client that asks
    without pause. *query*: CPU of a search, against the first bundle at the same time. *recall*@100 of the index on 200
    queries around the topics of the round, against the first bundle: mean and worst. Below each row, for each of the
    rounds with new topics: items of a topic, recall on queries around them, and the share found of as many best items.
    """
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    names = "items, share, export CPU s, written MB, apply CPU s, visible s, slowest, query, recall mean worst"
    head(*names.split(", "), "repairs", "complete", "the first")
    for count in items:
        for share in shares:
            with new_store("deltas") as store:
                stream = Stream.of(store, count)
                reader, (made, export) = Reader(stream), stream.export(np.arange(TOPICS))
                first = Round(made, export, 0, 0, *reader.found(made, np.arange(TOPICS)))
                with started(store, f"serving.deltas={how}") as server:
                    found = list(rounds_of(stream, reader, server, share, rounds))
                    peaks = status("VmHWM") / 2**30, status("VmHWM", server.pid) / 2**30
                report(count, share, first, found)
                print(f"memory, peak: trainer {peaks[0]:.2f} GiB, server {peaks[1]:.2f} GiB", flush=True)


def report(items: int, share: float, first: Round, rounds: list[Round]) -> None:
    """Print the row of a stream."""
    old, new = rounds[:-NEW_ROUNDS], rounds[-NEW_ROUNDS:]
    changes = [one for one in old if one.made.depth] or old
    recalls = np.array([one.recall for one in old]) / first.recall
    fit = rounds[-1].made.index.fit
    costs = [(one.export, megabytes(one.made), one.apply, one.visible, one.query) for one in changes]
    *spent, query = np.median(costs, axis=0).tolist()
    slowest = max(one.visible for one in changes)
    counts = (fit.repairs if fit else 0, sum(not one.made.depth for one in rounds))
    recalled = f"{recalls.mean():.3f}, {recalls.min():.3f}"
    at_first = f"{first.export:.3g} s, {megabytes(first.made):.0f} MB"
    row(f"{items:,}", f"{share:.1%}", *spent, slowest, query, recalled, *counts, at_first)
    for number, one in enumerate(new, start=1):
        at = f"{NEW_TOPICS} new topics, round {number}: {one.own} items each"
        print(f"{at}, recall@{DEPTH} {one.recall / first.recall:.3f}, of the {one.own} best {one.found:.3f}")


@contextmanager
def gate_seconds() -> Iterator[list[float]]:
    """Yield the CPU-seconds of each time that a bundle answers the gate, in a list that grows meanwhile."""
    hits, spent = Servable.hits, list[float]()

    def timed(servable: Servable, cases: Cases, k: int) -> npt.NDArray[np.bool_]:
        begin = time.process_time()
        found = hits(servable, cases, k)
        spent.append(time.process_time() - begin)
        return found

    Servable.hits = timed  # type: ignore[method-assign, assignment]
    yield spent
    Servable.hits = hits  # type: ignore[method-assign]


@app.command()
def exports(items: Items = [200_000, 2_000_000], shares: Shares = SHARES) -> None:  # noqa: B006
    """Measure what the export of a delta costs the trainer; medians over deltas, after the first two.

    *gate*: the part in which both bundles answer the gate's queries. *memory*: by how much the rounds raise the peak.
    """
    torch.set_num_threads(1)
    train_quickly()
    head("items", "changed", "rounds", "export CPU s", "of it the gate", "written MB", "memory MB")
    for count in items:
        with new_store("exports") as store:
            stream = Stream.of(store, count)
            list(exported_rounds(stream, SHARES[0], 2))
            for share in shares:
                before = restart_peak()
                found = list(exported_rounds(stream, share, EXPORTS))
                medians = np.median(found, axis=0).tolist()
                row(f"{count:,}", f"{share:.1%}", len(found), *medians, (status("VmHWM") - before) / 1e6)


def exported_rounds(stream: Stream, share: float, rounds: int) -> Iterator[tuple[float, float, float]]:
    """Yield CPU-seconds, those of the gate, and megabytes written, of each round that was a delta."""
    for _ in range(rounds):
        stream.move(round(share * stream.items))
        with gate_seconds() as gate:
            made, seconds = stream.export(np.arange(TOPICS))
        if made.depth:
            yield seconds, sum(gate), megabytes(made)


@app.command()
def takes(items: Items = [200_000, 2_000_000]) -> None:  # noqa: B006
    """Measure what a server pays for a delta, by `serving.deltas`, without queries.

    For each way a process of its own follows a store and takes its deltas one by one. Medians. *CPU*: from the
    promotion until the version is served. *pause*: of the thread that searches. *memory*: the peak beyond that before
    the first delta. *grown*: what each delta leaves.
    """
    torch.set_num_threads(1)
    train_quickly()
    head("items", "moved", "how", "CPU, s", "slowest, s", "pause, ms", "longest, ms", "memory, MB", "grown, MB")
    for size in items:
        with new_store("takes") as store:
            stream = Stream.of(store, size, bundle_chain=DELTAS + 1, bundles_kept=DELTAS + 1)
            versions = [stream.export(np.arange(TOPICS))[0].version]
            for _ in range(DELTAS):
                stream.move(MOVED)
                stream.come()
                versions.append(stream.export(np.arange(TOPICS))[0].version)
            del stream
            for how in HOW:
                taken = json.loads(printed("benchmarks.publishing", "take", store.url, how, *versions))
                cpu, pause, before, peak, after = np.array(taken)[1:].T
                memory = (max(0.0, float((peak - before[0]).max())), float(after[-1] - after[0]) / (DELTAS - 1))
                times = (np.median(cpu), cpu.max(), 1000 * np.median(pause), 1000 * pause.max())
                row(f"{size:,}", f"{MOVED:,}", how, *map(float, times), *(part / 1e6 for part in memory))


@app.command(hidden=True)
def take(store: str, how: str, versions: list[str]) -> None:
    """Take versions one after the other; print CPU, pause, and memory before, at the peak and after, of each."""
    faiss.omp_set_num_threads(1)
    registry, log = CollectorRegistry(), BundleLog(Store(store))
    policy = DeltaPolicy(how, Memory.found())  # type: ignore[arg-type]
    watcher = BundleWatcher(Store(store), BundleMetrics(registry), policy=policy)
    found = []

    def pause() -> float:
        return registry.get_sample_value("weir_bundle_delta_pause_seconds_sum") or 0.0

    for version in versions:
        log.promote(version)
        before, spent, paused = restart_peak(), time.process_time(), pause()
        if not watcher.refresh():
            raise RuntimeError(f"{version} was not taken")
        cpu = time.process_time() - spent
        found.append([cpu, pause() - paused, before, status("VmHWM"), status("VmRSS")])
    print(json.dumps(found))


@app.command()
def complete(
    items: Items = [2_000_000],  # noqa: B006
    ranks: Annotated[list[int], typer.Option(help="numbers of ranks; may be repeated")] = [1, 2, 4],  # noqa: B006
    rounds: Annotated[int, typer.Option(help="complete bundles after the first")] = 3,
) -> None:
    """Measure a complete bundle where all items have moved and lists are kept, and how ranks share it.

    Medians over rounds, after the first bundle, which trains the lists. *made*: while no rank trains, as for a bounded
    run; or beside the stream, as for a follower. A loop of small steps of a model stands for training on each rank.
    *CPU*: of all ranks, and of rank 0, without these steps. *wait*: wall seconds in which no rank trains. *own*: own
    memory of rank 0 at its peak. *step*: milliseconds on rank 0, median and 99th percentile.
    """
    head("items", "ranks", "made", "moved", "CPU, s", "rank 0, s", "wait, s", "published, s", "own, MB", "step, ms")
    for number in items:
        for count in ranks:
            found: F64 = figures_of_ranks(count, "benchmarks.publishing", number, rounds, "auto")
            for way, of_way in zip(WAYS, found.transpose(1, 0, 2), strict=True):
                cpu, first = float(of_way[:, 0].sum()), of_way[0].tolist()
                steps = f"{first[5]:.2f}, {first[6]:.2f}"
                row(f"{number:,}", count, way, f"{first[4]:.0%}", cpu, *first[:4], steps)


@app.command(hidden=True)
def rank(items: int, rounds: int, index: str) -> None:
    """Be one of the ranks that `complete` starts; the first prints what all of them found."""
    torch.set_num_threads(1)
    train_quickly()
    with Workers.from_environment("cpu", 1200) as workers:
        found = workers.gather(torch.tensor(figures(items, rounds, index, workers), dtype=torch.float64))
        workers.first(lambda: print(json.dumps(found.tolist())))


def figures(items: int, rounds: int, index: str, workers: Workers) -> list[list[float]]:
    """Return for each way what a rank found: medians of what `published` returns."""
    state = filled(TrainerConfig(device="cpu", index=index), items, workers=workers)
    planner = ExportPlanner(large=1)
    found: dict[str, list[Sequence[float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        exported(Store(folder), state, planner, workers)
        for way in WAYS * rounds:
            state.embeddings.weight.mul_(-1)
            state.position.step += 1
            state.since.ref = None  # as after steps that touch all rows
            planner.beside = way == WAYS[1]
            found[way].append(published(Store(folder), state, planner, workers))
    return [np.median(found[way], axis=0).tolist() for way in WAYS]


def published(store: Store, state: TrainerState, planner: ExportPlanner, workers: Workers) -> list[float]:
    """Export; return CPU seconds, those that training waits and until the bundle is published, memory, share and steps.

    Memory is own memory in MB, at most; the share is that of the items that have moved, on rank 0; of the milliseconds
    of steps it is median and 99th percentile.
    """
    cpu, wall, steps, stepped = time.process_time(), time.perf_counter(), list[float](), 0.0
    (wait, memory), moved = exported(store, state, planner, workers)
    if workers.any(planner.making is not None):
        with Peak() as peak:
            while workers.any(planner.making is not None and planner.making.running):
                stepped += step(steps)
        (last, more), moved = exported(store, state, planner, workers)
        wait, memory = wait + last, max(memory, peak.own / 1e6, more)
    spent = [time.process_time() - cpu - stepped, wait, time.perf_counter() - wall, memory, moved]
    if not steps:
        step(steps)
    return [*spent, *(1000 * np.quantile(steps, [0.5, 0.99])).tolist()]


def exported(
    store: Store, state: TrainerState, planner: ExportPlanner, workers: Workers
) -> tuple[tuple[float, float], float]:
    """Export; return seconds of the clock and own memory in MB, and on rank 0 the share of items that moved.

    Of a bundle that is made beside the stream from here on, that share is not known.
    """
    made: list[BundleManifest] = []
    wall = time.perf_counter()

    def export() -> None:
        with suppress(AwaitedError):
            made.append(export_bundle(store, state, planner=planner))

    with Peak() as peak:
        workers.first(export, state.answer)
    return (time.perf_counter() - wall, peak.own / 1e6), made[0].moved or 0.0 if made else 0.0


def step(seconds: list[float]) -> float:
    """Make small steps of a model for a moment, append the seconds of each, and return the CPU-seconds of all."""
    before, end, weight = time.thread_time(), time.perf_counter() + MOMENT, torch.randn(64, 64)
    while (begin := time.perf_counter()) < end:
        for _ in range(20):
            weight = torch.tanh(weight @ weight)
        seconds.append(time.perf_counter() - begin)
    return time.thread_time() - before


@dataclass
class Published:
    """The bundles of one bound, and what they showed."""

    bound: float
    store: Store
    planner: ExportPlanner = field(default_factory=ExportPlanner)
    servable: Servable | None = None
    moved: list[float] = field(default_factory=list)
    deltas: list[bool] = field(default_factory=list)
    recalls: list[float] = field(default_factory=list)

    def test(self, cases: Cases) -> None:
        """Test the newest bundle on events that nothing was trained on."""
        if self.servable is not None and len(cases):
            self.recalls.append(float(self.servable.hits(cases, K).mean()))

    def export(self, state: TrainerState, recent: RecentCases) -> None:
        """Export as a stream with this bound does."""
        mine = copy(state)
        mine.config = state.config.model_copy(update={"publish_bound": self.bound})
        manifest = export_bundle(self.store, mine, recent, planner=self.planner)
        self.servable = self.planner.open(BundleLog(self.store), manifest)
        if manifest.moved is not None:
            self.moved.append(manifest.moved)
        self.deltas.append(manifest.depth > 0)


@app.command()
def bound(
    log: Annotated[Path | None, typer.Option(help="a finished log; the generated one by default")] = None,
) -> None:
    """Measure what a bound costs in recall, and how much it leaves unpublished, along a real stream.

    One training goes through the windows of a log, with the settings of `weir up --demo`. After each window it exports
    once for every bound, each into a store of its own. Means over the windows. *moved*: share of the items that are new
    or off by more than the bound. *deltas*: share of the exports that were deltas. *recall*@20 of the bundle on the
    next window before that is trained on, and its difference from the bundle with bound 0.
    """
    from weir.pipelines.batch.ingest import ingest  # noqa: PLC0415 - Beam's memory is not to count where memory is measured

    with tempfile.TemporaryDirectory(prefix="weir-bound-") as name:
        folder = Path(name)
        if log is None:
            (folder / "generated.jsonl").write_bytes(generate().lines)
        path = log or folder / "generated.jsonl"
        settings = Settings(**demo_settings(path, open_log(path).profile, generated=log is None))
        store = Store(str(folder / "store"))
        ingest(store, settings.pipeline)
        published = [Published(bound, Store(str(folder / f"bound-{bound}"))) for bound in BOUNDS]
        train(store, settings, published)
    head("bound", "windows", "moved", "deltas", f"recall@{K}", "difference", "standard error")
    exact = np.array(published[0].recalls)
    for one in published:
        off = np.array(one.recalls) - exact
        error = off.std(ddof=1) / np.sqrt(len(off))
        means = (float(np.mean(one.moved)), float(np.mean(one.deltas)))
        row(one.bound, len(exact), *means, f"{np.mean(one.recalls):.4f}", f"{off.mean():+.4f}", f"{error:.4f}")


def train(store: Store, settings: Settings, published: list[Published]) -> None:
    """Train window by window, and export after each for every bound."""
    config = settings.trainer.model_copy(update={"device": "cpu"})
    state, recent = TrainerState.fresh(config), RecentCases(store, config)

    def review(manifest: WindowManifest, found: SharedWindow) -> None:
        cases = recent.note(manifest, found.sampled(config.seed, manifest.sequence, MOST))
        for one in published:
            one.test(cases)

    learning = learner(store, state, Workers(), threading.Event(), review)
    for manifest in WindowLog(store).follow():
        learning.process_window(manifest)
        for one in published:
            one.export(state, recent)


if __name__ == "__main__":
    app()
