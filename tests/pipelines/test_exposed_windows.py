"""Windows with exposure, however a log comes in: its bounded runs, a stream, a rebuild; and who is forgotten."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from tests.pipelines import support
from tests.pipelines.batch.test_rebuild import content, rebuild
from tests.pipelines.stream import simulation
from tests.readers.files import ORIGIN
from weir.contracts import INTERACTION_SCHEMA, PADDING_KEY, ExposureCounts, Store, WindowLog, hash_id
from weir.contracts.served_lists import SERVED_SCHEMA, new_segment, served_token, write_served
from weir.contracts.verification import verify
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.maintenance.erased_files import Forgotten
from weir.pipelines.maintenance.erasure import forget_users
from weir.pipelines.stream.committer import commit_window
from weir.pipelines.stream.reader import Batch
from weir.pipelines.stream.slices import slices_of

LIMIT = 3
USERS = ["ann", "bob", "cyd"]


@dataclass
class Scene:
    """A log in which some events come of lists; `exposed` is what each must bring, by (user, second)."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    exposed: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = random.Random(3)
        self.lists: list[dict[str, Any]] = []
        self.segment = new_segment(ORIGIN)
        for second in range(40):
            user = rng.choice(USERS)
            # All items differ, so that what a user chose is in no other list.
            items, place = [f"item-{second}-{number}" for number in range(5)], rng.randrange(5)
            token = self._serve(user, items, second) if rng.random() < 0.7 else None
            self.rows.append({"user_id": user, "item_id": items[place], "timestamp": ORIGIN + second, "token": token})
            seen = [*reversed(items[:place]), *items[place + 1 : place + 2]] if token else []
            self.exposed[hash_id(user), 1000 * (ORIGIN + second)] = [hash_id(item) for item in seen[:LIMIT]]

    def _serve(self, user: str, items: list[str], number: int) -> str:
        token = served_token("v1", self.segment, f"{number:016x}")
        values = [token, 0, hash_id(user), 0, "v1", False, items]
        self.lists.append(dict(zip(SERVED_SCHEMA.names, values, strict=True)))
        return token

    def store(self, name: str) -> Store:
        """Return a store with the lists."""
        store = Store(str(self.folder / name))
        write_served(store, self.segment, pa.Table.from_pylist(self.lists, SERVED_SCHEMA))
        return store

    def write(self, part: slice) -> None:
        events = ({**row, "event_type": "click", "attribution_token": row["token"]} for row in self.rows[part])
        support.write_lines(self.folder / "log/a.jsonl", [json.dumps(event) + "\n" for event in events])

    @property
    def clicks(self) -> int:
        return sum(row["token"] is not None for row in self.rows)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def exposed_in(store: Store) -> dict[tuple[int, int], list[int]]:
    """(user, time) -> exposed items of all windows."""
    log, found = WindowLog(store), dict[tuple[int, int], list[int]]()
    for manifest in log.committed():
        assert manifest.exposed_items
        rows = log.all_examples(manifest, ["user_key", "timestamp", "exposed"]).to_pylist()
        items = 0
        for row in rows:
            keys = [key for key in row["exposed"] if key != PADDING_KEY]
            found[row["user_key"], row["timestamp"]] = keys
            items += len(keys)
        assert manifest.exposure.items >= items
    return found


def counted(store: Store) -> ExposureCounts:
    return sum((manifest.exposure for manifest in WindowLog(store).committed()), ExposureCounts())


def bring_in(store: Store, scene: Scene, registry: CollectorRegistry | None = None, **changes: Any) -> None:
    config = support.config(scene.folder, **{"exposed_items": LIMIT} | changes)
    ingest(store, config, registry=registry or CollectorRegistry())


def test_every_example_of_a_bounded_run_brings_what_its_list_says(scene: Scene) -> None:
    store = scene.store("store")
    # The second part is late: its windows get further panes.
    scene.write(slice(0, None, 2))
    first, second = CollectorRegistry(), CollectorRegistry()
    bring_in(store, scene, first)
    scene.write(slice(1, None, 2))
    bring_in(store, scene, second)
    assert exposed_in(store) == scene.exposed
    assert counted(store) == ExposureCounts(joined=scene.clicks, items=sum(map(len, scene.exposed.values())))
    for name, labels, wanted in [
        ("exposure_clicks_total", {"outcome": "joined"}, scene.clicks),
        ("exposure_clicks_total", {"outcome": "unknown_list"}, 0),
        ("exposed_items_total", {}, counted(store).items),
    ]:
        values = [one.get_sample_value(f"weir_pipeline_{name}", labels) for one in (first, second)]
        assert sum(value for value in values if value is not None) == wanted
        assert None not in values
    assert verify(store).findings == []


def test_a_stream_gives_the_same(scene: Scene) -> None:
    store = scene.store("store")
    config = simulation.settings(scene.folder).model_copy(update={"exposed_items": LIMIT})
    simulation.start(store, config, [simulation.Partition("kafka/c/t/id/0", {})])
    rows = [
        {
            "user_id": row["user_id"], "item_id": row["item_id"], "timestamp": 1000 * row["timestamp"], "label": 1,
            "weight": 1.0, "attribution_token": row["token"], "position": number,
        }
        for number, row in enumerate(scene.rows)
    ]  # fmt: skip
    valid = pa.RecordBatch.from_pylist(rows, INTERACTION_SCHEMA)
    batch = Batch("kafka/c/t/id/0", "job", 0, len(rows), 0, len(rows), valid, (), np.empty(0, np.int64))
    for start_ms, one in slices_of(batch, config.window_ms, ""):
        commit_window(store, config, start_ms, [one])
    assert exposed_in(store) == scene.exposed
    assert counted(store) == ExposureCounts(joined=scene.clicks, items=sum(map(len, scene.exposed.values())))


def test_a_rebuild_needs_no_list(scene: Scene) -> None:
    origin = scene.store("origin")
    scene.write(slice(None))
    bring_in(origin, scene)
    store, other = Store(str(scene.folder / "equal")), Store(str(scene.folder / "other"))
    rebuild(origin, store, support.config(scene.folder, exposed_items=LIMIT))
    log, again = WindowLog(origin), WindowLog(store)
    assert [content(store, pane) for pane in again.committed()] == [content(origin, pane) for pane in log.committed()]
    assert counted(store) == ExposureCounts(carried=scene.clicks, items=counted(origin).items)
    rebuild(origin, other, support.config(scene.folder, exposed_items=1, user_shards=3, window_seconds=20))
    assert exposed_in(other) == {event: items[:1] for event, items in scene.exposed.items()}
    wider = Store(str(scene.folder / "wider"))
    rebuild(origin, wider, support.config(scene.folder, exposed_items=9))
    assert exposed_in(wider) == scene.exposed


def test_windows_without_exposure_rebuild_into_windows_with_it(scene: Scene) -> None:
    origin = scene.store("origin")
    scene.write(slice(None))
    bring_in(origin, scene, exposed_items=0)
    assert all("exposure" not in pane.model_dump() for pane in WindowLog(origin).committed())
    assert "exposed" not in WindowLog(origin).all_examples(WindowLog(origin).committed()[0]).column_names
    # The lists come to the new store, as its servers write them there.
    store = scene.store("store")
    rebuild(origin, store, support.config(scene.folder, exposed_items=LIMIT))
    assert exposed_in(store) == scene.exposed


def test_a_log_goes_on_with_other_settings(scene: Scene) -> None:
    store = scene.store("store")
    scene.write(slice(0, 20))
    bring_in(store, scene, exposed_items=1)
    scene.write(slice(20, None))
    support.change_settings(store, support.config(scene.folder, exposed_items=LIMIT))
    bring_in(store, scene)
    seen = exposed_in(store)
    cut = {event: items[: 1 if place < 20 else LIMIT] for place, (event, items) in enumerate(scene.exposed.items())}
    assert seen == cut


def test_who_is_forgotten_takes_their_exposure_along(scene: Scene) -> None:
    store = scene.store("store")
    scene.write(slice(None))
    bring_in(store, scene)
    forgotten = Forgotten.of(["ann"], "")
    report = forget_users(store, support.config(scene.folder, exposed_items=LIMIT), forgotten)
    assert report.held == ("ann",)
    left = {event: items for event, items in scene.exposed.items() if event[0] != hash_id("ann")}
    assert exposed_in(store) == left
    assert verify(store).findings == []
