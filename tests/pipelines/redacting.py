"""A small store with users to forget: late panes, refused lines that name them, events of both kinds."""

import random
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import CommitLog, LogState, Store, UserHistories, UserKeys, WindowLog, hash_id, read_format
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.pipelines.maintenance.cleanup import Erasure
from weir.pipelines.maintenance.erased_files import Forgotten
from weir.pipelines.maintenance.erasure import RedactionReport, forget_users
from weir.pipelines.maintenance.erasure_check import sightings
from weir.pipelines.transforms.read import read_dead_letters
from weir.readers import DeadLetter

USERS = 8
WINDOW = 10


def settings(folder: Path, **changes: Any) -> PipelineConfig:
    return support.config(folder, window_seconds=WINDOW, allowed_lateness_seconds=0, **changes)


def store_of(folder: Path) -> Store:
    return Store(str(folder / "store"))


def user(number: int) -> str:
    return f"user-{number}"


def events_of(part: int, seed: int = 0, count: int = 30) -> list[Event]:
    """The events of a window, and some late ones of the window before."""
    rng = random.Random(f"{seed}-{part}")
    first = max(WINDOW * (part - 1), 0)
    return [
        Event(user(rng.randrange(USERS)), f"item-{rng.randrange(12)}", rng.randrange(first, WINDOW * (part + 1)),
              rng.choice(["click", "click", "skip"]), f"event-{part}-{number}")
        for number in range(count)
    ]  # fmt: skip


def refused(part: int) -> list[str]:
    """Lines that are refused, most of them with a user."""
    return [
        f'{{"user_id": "{user(part % USERS)}", "item_id": ""}}\n',
        f'{{"user_id": "{user(1)}", "item_id": "torn\n',
        '{"user_id": "\\u0075ser-2", "timestamp": "never"}\n',
        "no json\n",
    ]


def arrive(folder: Path, part: int, seed: int = 0) -> None:
    lines = [event.line() for event in events_of(part, seed)]
    support.write_lines(folder / f"log/part-{part:02d}.jsonl", [*lines, *refused(part)])


def run(folder: Path, **changes: Any) -> None:
    ingest(store_of(folder), settings(folder, **changes), registry=CollectorRegistry())


def build(folder: Path, parts: int = 3, seed: int = 0, **changes: Any) -> Store:
    for part in range(parts):
        arrive(folder, part, seed)
        run(folder, **changes)
    return store_of(folder)


def forget(folder: Path, ids: list[str], **changes: Any) -> RedactionReport:
    return forget_users(store_of(folder), settings(folder, **changes), forgotten(folder, ids))


def forgotten(folder: Path, ids: list[str]) -> Forgotten:
    found = read_format(store_of(folder))
    assert found is not None
    return Forgotten.of(ids, found.key_secret)


def letters_of(store: Store) -> list[DeadLetter]:
    """The dead letters of the files that commits list and no redaction has replaced."""
    log, at, found = CommitLog(store), CommitLog(store).first(), dict[str, list[DeadLetter]]()
    while (step := log.next(at)) is not None:
        commit, at = step
        for replaced in (one.replaces for one in commit.rewritten):
            del found[replaced]
        for file in (*commit.letters, *commit.rewritten):
            found[file.name] = read_dead_letters(store, file.name, file.checksum)
            reasons = Counter(letter.reason for letter in found[file.name])
            # What a redaction has replaced may be gone.
            assert file.reasons == reasons or not store.exists(file.name)
    return sorted(chain.from_iterable(found.values()), key=lambda one: (one.partition, one.position))


def sighted(folder: Path, ids: list[str]) -> list[str]:
    return [one.name for one in sightings(store_of(folder), forgotten(folder, ids))]


def erase(folder: Path) -> int:
    """Remove what redactions have replaced: nobody reads it."""
    store = store_of(folder)
    return Erasure(store, -1.0).run(LogState.open(store))


@dataclass
class Content:
    """All that a store says: rows by pane, records and seen items by user, dead letters."""

    rows: dict[int, list[dict[str, Any]]]
    users: dict[int, Any]
    letters: list[Any]

    @classmethod
    def of(cls, store: Store) -> "Content":
        log, state = WindowLog(store), LogState.open(store)
        panes = log.committed()
        assert [pane.sequence for pane in panes] == list(range(len(panes)))
        described = read_format(store)
        assert described is not None
        assert described.layout is not None
        reader = UserHistories(store, described.layout.user_shards)
        reader.take_in(state.histories)
        keys = UserKeys(np.array([hash_id(user(number), described.key_secret) for number in range(USERS)], np.int64))
        found = reader.find(keys)
        records, seen = found.records(), found.seen(np.arange(len(keys)))
        users = {
            key: ([column[place].tolist() for column in records], seen.of(place).tolist(), bool(seen.bounded[place]))
            for place, key in enumerate(keys.tolist())
            if records.totals[place] or len(seen.of(place))
        }
        rows = {pane.sequence: log.all_examples(pane).to_pylist() for pane in panes}
        for pane in panes:
            labels = [row["label"] for row in rows[pane.sequence]]
            assert (pane.counts.positives, pane.counts.negatives) == (labels.count(1), labels.count(-1))
            assert pane.counts.events == len(labels)
        return cls(rows, users, letters_of(store))

    def without(self, ids: set[str], secret: str = "") -> "Content":
        """What is expected of a redaction, but for the letters."""
        keys = {hash_id(one, secret) for one in ids}
        rows = {at: [row for row in found if row["user_key"] not in keys] for at, found in self.rows.items()}
        return Content(rows, {key: one for key, one in self.users.items() if key not in keys}, self.letters)
