"""What a change of some items costs from the export to the answer, against what is stored.

    OMP_NUM_THREADS=1 python -m benchmarks.deltas                                     # 200,000 items, 1 %, 20 rounds
    OMP_NUM_THREADS=1 python -m benchmarks.deltas --items 2000000 --rounds 50         # 8 GB of memory, 4 GB of disk
    OMP_NUM_THREADS=1 python -m benchmarks.deltas --share .001 --share .01 --share .1 --rounds 4

Items lie around 2,000 topics, which drift. Each round a share of them moves to where its topic is by then, and a new
item comes; in the last three rounds those that move go to 20 new topics instead. The trainer's own export publishes a
round, and a ``weir serve`` of its own process serves it. The columns are medians over the rounds that were deltas:

- export: CPU-seconds of `export_bundle`, which compares, writes and judges; written: of the bundle.
- apply: CPU-seconds of the server from one version to the next, which wait for the export and answer the client that
  asks (`benchmarks.takes` measures the delta alone); visible: seconds from the promotion to the first answer
  that has the new item, by a client that asks without pause.
- query: CPU of a search in the index as the server holds it, against that of the first bundle in the same moment.
- recall@100 of the index, on 200 queries around the topics of the round, against that of the first bundle on its own:
  mean and worst of the rounds.
- repairs and complete: how many there were.

Below each row, for each of the three rounds with new topics: how many items a topic has by then, recall@100 as above on
queries around these topics, and the share found of as many best items as a topic has. At last, the memory of both.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Self

import faiss
import numpy as np
import torch
import typer

from benchmarks.harness import I64, command_line, head, row, status
from benchmarks.served_index import ServedIndex
from benchmarks.server_start import started
from benchmarks.states import admit, filled, item_id
from benchmarks.topics import TOPICS, Floats, World
from weir.contracts import BundleLog, BundleManifest, ItemKeys, Layout, Store, StoreFormat, ensure_format, hash_ids
from weir.serving.client import RetrievalClient, by_embedding
from weir.trainer.config import TowerConfig, TrainerConfig
from weir.trainer.export import export_bundle
from weir.trainer.export.cases import Cases, RecentCases
from weir.trainer.export.keeper import Keeper
from weir.trainer.export.servable import Servable
from weir.trainer.users.lines import UserLines

app = command_line(__doc__)
NEW_TOPICS: Final = 20
QUERIES: Final = 200
DEPTH: Final = 100
NEW_ROUNDS: Final = 3


class Newest(RecentCases):
    """What the gate compares on, and lists are judged by: events of the round instead of a store's windows."""

    cases: Cases

    def up_to(self, sequence: int) -> Cases:  # noqa: ARG002 - a round has no number
        """Return the cases of the round."""
        return self.cases


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

    @property
    def written(self) -> float:
        """Megabytes of the bundle."""
        return sum(file.size for file in self.made.files) / 1e6


@dataclass
class Stream:
    """A trainer's state, whose items move round by round, and what was exported of it."""

    store: Store
    items: int
    config: TrainerConfig
    world: World
    keeper: Keeper = field(default_factory=Keeper)
    newest: str = ""
    vector: Floats = field(init=False)
    served: ServedIndex = field(init=False)

    def __post_init__(self) -> None:
        self.state, _ = filled(self.config, self.items)
        self.topic = self.world.draw.integers(0, TOPICS, self.items)
        self.place(np.arange(self.items))
        self.recent = Newest(self.store, self.config)
        self.served = ServedIndex(BundleLog(self.store))

    @classmethod
    def of(cls, store: Store, items: int, dimension: int) -> Self:
        """Make a store, and a state of so many items."""
        ensure_format(store, StoreFormat(layout=Layout(window_ms=3_600_000, user_shards=1, sketch={})))
        tower = TowerConfig(kind="mean_pooling", dimension=dimension, history_length=4)
        return cls(store, items, TrainerConfig(device="cpu", tower=tower, gate_tolerance=1.0), World(dimension))

    def place(self, chosen: I64) -> None:
        """Put items where their topics are."""
        for some in np.array_split(chosen, len(chosen) // 100_000 + 1):
            rows = self.state.live[torch.from_numpy(some)]
            self.state.embeddings.weight[rows] = torch.from_numpy(self.world.around(self.topic[some]))
            self.state.embeddings.touched.mark(rows.numpy())
        self.state.position.step += 1

    def come(self) -> None:
        """Add an item that is unlike all others."""
        self.newest = item_id(len(self.state.table))
        ids = np.array([self.newest], object)
        admit(self.state, ItemKeys(hash_ids([self.newest])), ids, 0)
        self.topic = np.append(self.topic, 0)
        self.vector = self.world.noise(1, self.world.topics.shape[1])[0]
        self.state.embeddings.weight[self.state.live[-1]] = torch.from_numpy(self.vector)
        self.state.counts.read_all()

    def export(self, topics: I64) -> tuple[BundleManifest, float]:
        """Publish the items, judged by events of these topics; return the bundle and the CPU-seconds."""
        chosen = np.flatnonzero(np.isin(self.topic, topics))[: 4 * QUERIES]
        keys = self.state.table.keys[self.state.table.live]
        items, histories = ItemKeys(keys[chosen]), ItemKeys(keys[chosen][:, None])
        self.recent.cases = Cases(items, histories, UserLines.nothing(len(items)))
        before = time.process_time()
        made = export_bundle(self.store, self.state, self.recent, keeper=self.keeper)
        return made, time.process_time() - before

    def found(self, made: BundleManifest, topics: I64) -> tuple[float, float, int, float]:
        """Return the CPU of a query against that of the first bundle, then recalls as a `Round` has them."""
        self.served.follow(made)
        servable = self.keeper.open(BundleLog(self.store), made)
        queries = self.world.around(self.world.draw.choice(topics, QUERIES))
        rows, exact = servable.index.search(queries, DEPTH)[1], best_rows(servable, queries)
        own = min(int(np.isin(self.topic, topics).sum()) // len(topics), DEPTH)
        cost = self.served.query_cost(queries, DEPTH)
        return cost, recall(rows, exact), own, recall(rows[:, :own], exact[:, :own])


def recall(found: I64, exact: I64) -> float:
    """Return the share of the exact best rows (n, k) that were found, (n, k)."""
    return float(np.mean([len(np.intersect1d(*pair)) / len(pair[0]) for pair in zip(found, exact, strict=True)]))


def best_rows(servable: Servable, queries: Floats) -> I64:
    """Return the rows of the exact best items, (n, DEPTH)."""
    live = servable.rows.live
    _, best = faiss.knn(queries, servable.rows.vectors[live], DEPTH, metric=faiss.METRIC_INNER_PRODUCT)
    return np.asarray(live[best])


@dataclass
class Watch:
    """A server, and when it answers with what is new."""

    store: Store
    server: int
    client: RetrievalClient

    def spent(self) -> float:
        """Return the CPU-seconds of the server so far."""
        fields = Path(f"/proc/{self.server}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def until(self, version: str, item: str, vector: Floats) -> float:
        """Ask with an item's vector until it is the answer; return the seconds since its version was promoted."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            answer = self.client.retrieve([by_embedding(vector.tolist(), 1)])
            if answer.bundle_version == version and answer.hits[0].item_ids == [item]:
                return time.time() - self.store.modified("bundles/CURRENT")
            time.sleep(0.005)
        raise RuntimeError(f"{item} of {version} does not become visible")


def rounds_of(stream: Stream, watch: Watch, share: float, rounds: int) -> Iterator[Round]:
    """Yield the rounds with drift, then those with new topics."""
    world, count = stream.world, round(share * stream.items)
    for number in range(rounds + NEW_ROUNDS):
        chosen, topics = world.draw.choice(stream.items, count, replace=False), np.arange(TOPICS)
        if number < rounds:
            world.drift()
        else:
            if number == rounds:
                world.topics = np.concatenate([world.topics, world.noise(NEW_TOPICS, world.topics.shape[1])])
            topics = np.arange(TOPICS, TOPICS + NEW_TOPICS)
            stream.topic[chosen] = world.draw.choice(topics, count)
        stream.place(chosen)
        stream.come()
        before = watch.spent()
        made, export = stream.export(topics)
        visible = watch.until(made.version, stream.newest, stream.vector)
        apply = watch.spent() - before
        yield Round(made, export, apply, visible, *stream.found(made, topics))


def report(items: int, share: float, first: Round, rounds: list[Round]) -> None:
    """Print the row of a stream."""
    old, new = rounds[:-NEW_ROUNDS], rounds[-NEW_ROUNDS:]
    deltas = [one for one in old if one.made.depth] or old
    recalls = np.array([one.recall for one in old]) / first.recall
    fit = rounds[-1].made.index.fit

    def median(name: str) -> float:
        return float(np.median([getattr(one, name) for one in deltas]))

    row(
        f"{items:,}",
        f"{share:.1%}",
        median("export"),
        median("written"),
        median("apply"),
        median("visible"),
        max(one.visible for one in deltas),
        median("query"),
        f"{recalls.mean():.3f}, {recalls.min():.3f}",
        fit.repairs if fit else 0,
        sum(not one.made.depth for one in rounds),
        f"{first.export:.3g} s, {first.written:.0f} MB",
    )
    for number, one in enumerate(new, start=1):
        at = f"{NEW_TOPICS} new topics, round {number}: {one.own} items each"
        print(f"{at}, recall@{DEPTH} {one.recall / first.recall:.3f}, of the {one.own} best {one.found:.3f}")


@app.command(help=__doc__)
def main(
    items: Annotated[list[int], typer.Option(help="items; may be repeated")] = [200_000],  # noqa: B006 - typer copies it
    share: Annotated[list[float], typer.Option(help="of them that move in a round; may be repeated")] = [0.01],  # noqa: B006
    rounds: Annotated[int, typer.Option(help="rounds with drift")] = 20,
    dimension: Annotated[int, typer.Option(help="of vectors")] = 64,
    folder: Annotated[Path | None, typer.Option(help="where stores are written, and removed", exists=True)] = None,
    *,
    deltas: Annotated[str, typer.Option(help="how the server takes them: auto, clone or in_place")] = "auto",
) -> None:
    """Measure and print, a stream at a time."""
    torch.set_num_threads(1)
    names = "items, share, export CPU s, written MB, apply CPU s, visible s, slowest, query, recall mean worst"
    head(*names.split(", "), "repairs", "complete", "the first")
    for count in items:
        for part in share:
            path = Path(tempfile.mkdtemp(prefix="weir-deltas-", dir=folder))
            try:
                measure(Stream.of(Store(str(path)), count, dimension), part, rounds, f"serving.deltas={deltas}")
            finally:
                shutil.rmtree(path)


def measure(stream: Stream, share: float, rounds: int, setting: str) -> None:
    """Print the row of one stream, for a server with a setting."""
    store = stream.store
    made, export = stream.export(np.arange(TOPICS))
    first = Round(made, export, 0, 0, *stream.found(made, np.arange(TOPICS)))
    with started(store, setting) as (process, target, *_), RetrievalClient(target, timeout=60) as client:
        found = list(rounds_of(stream, Watch(store, process, client), share, rounds))
        peaks = status("VmHWM") / 2**30, status("VmHWM", process) / 2**30
    report(stream.items, share, first, found)
    print(f"memory, peak: trainer {peaks[0]:.2f} GiB, server {peaks[1]:.2f} GiB", flush=True)


if __name__ == "__main__":
    app()
