"""The log of a store's life, as files or as a topic, and the oracle of its events: all follow from a part's number."""

import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from confluent_kafka import Producer

from tests.campaigns.lives import ROOT
from tests.readers.files import ORIGIN, Event, write_delimited, write_lines, write_parquet
from weir.contracts import BundleLog, Store, WindowLog, hash_id, read_format
from weir.pipelines.kafka_config import Topic
from weir.readers import is_topic
from weir.serving.bundles.loading import load_bundle
from weir.serving.client import RetrievalClient, by_history, by_user

K: Final = 10
"""Items asked for."""

USERS: Final = 20
GUESTS: Final = "guest-"
"""Who is new in a part, is there for two parts; users who are forgotten are among them."""
ITEMS: Final = 60
EVENTS: Final = 150
SECONDS: Final = 300
"""Events of a part, and the seconds over which they are."""
LATE: Final = 30
"""Seconds that an event may be before the first of its part."""

_GENRES: Final = ("rock", "jazz", "folk")


def item_of(rng: random.Random, part: int) -> str:
    """Return an item of a part: few have most of the events, and new ones come every three parts."""
    return f"item-{min(int(rng.paretovariate(0.7)), ITEMS)}-{part // 3 * rng.randrange(2)}"


def told_of(item: str) -> tuple[tuple[str, ...] | None, float | None]:
    """Return the genres and the price of an item; of many, one of both is not known."""
    number = sum(item.encode())
    genres = (_GENRES[number % 3], "live")[: 1 + number % 2]
    return None if number % 5 == 0 else genres, None if number % 4 == 0 else number / 7


def events_of(part: int) -> list[Event]:
    """Return the events of a part; each (user, item, second) is there once."""
    rng, found = random.Random(part), {}
    for number in range(EVENTS):
        is_guest = rng.random() < 0.1
        user = f"{GUESTS}{part - rng.randrange(2)}" if is_guest else f"user-{rng.randrange(USERS)}"
        item, second = item_of(rng, part), SECONDS * part + rng.randrange(-LATE if part else 0, SECONDS)
        kind = rng.choice(["click", "click", "click", "skip", "view"])
        found[user, item, second] = Event(user, item, second, kind, f"event-{part}-{number}", *told_of(item))
    return list(found.values())


def write_part(log: str, part: int) -> None:
    """Add a part to a log, a folder or a topic: its events, some of them twice, and a row that is none."""
    if is_topic(log):
        # A process of its own: a client's threads would be in the way of forks.
        subprocess.run([sys.executable, "-m", "tests.campaigns.life_log", log, str(part)], check=True, cwd=ROOT)
    else:
        _write_file(Path(log) / f"{part:03d}", part)


def _write_file(path: Path, part: int) -> None:
    """Write a part as JSON Lines, CSV or Parquet, in turn."""
    events = events_of(part)
    if part % 3 == 0:
        replace(path.with_suffix(".jsonl"), lines_of(part))
    elif part % 3 == 1:
        hidden = path.with_name(f".{path.name}.csv")
        write_delimited(hidden, [*events, *events[::9]])
        write_lines(hidden, ["no row of seven\n"])
        hidden.rename(path.with_suffix(".csv"))
    else:
        hidden = path.with_name(f".{path.name}.parquet")
        write_parquet(hidden, [*events, *events[::9], Event("", "nobody's", 0)], row_group=50)
        hidden.rename(path.with_suffix(".parquet"))


def lines_of(part: int) -> list[str]:
    """Return the lines of a part."""
    lines = [event.line() for event in events_of(part)]
    return [*lines, *lines[::9], "no json\n"]


def describe(folder: Path, rng: random.Random, part: int) -> None:
    """Now and then, say something else of items in the catalogue, and take others down."""
    if rng.random() < 0.3 or not (folder / "catalogue.jsonl").exists():
        items = {item_of(rng, part + 3) for _ in range(rng.randrange(1, 60))}
        replace(folder / "catalogue.jsonl", [_described(rng, item) for item in sorted(items)])
    if rng.random() < 0.3 or not (folder / "takedown.txt").exists():
        items = {item_of(rng, part) for _ in range(rng.randrange(4))}
        replace(folder / "takedown.txt", [f"{item}\n" for item in sorted(items)])


def _described(rng: random.Random, item: str) -> str:
    genre, price = told_of(item)
    says: dict[str, Any] = {"item_id": item, "tags": [rng.choice("abc")], "genre": genre, "price": price}
    if rng.random() < 0.2:
        says["available_until"] = int(time.time()) + rng.randrange(-5, 20)
    return json.dumps(says) + "\n"


def first_end(store: Store) -> float:
    """Return the second of the log at which the first window of a store ends, 0 before there is one."""
    return min((manifest.end_ms / 1000 - ORIGIN for manifest in WindowLog(store).committed()), default=0.0)


def replace(path: Path, lines: list[str]) -> None:
    """Write a file that others read, as a whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text("".join(lines))
    temporary.rename(path)


PARTITIONS: Final = 2
"""Partitions that get messages; a topic may have more."""


def send(log: str, part: int) -> None:
    """Send each line of a part to one of the partitions, whoever its user is."""
    topic, rng = Topic.parse(log), random.Random(part)
    producer = Producer({"bootstrap.servers": ",".join(topic.servers), "acks": "all"})
    for line in lines_of(part):
        producer.produce(topic.name, line.strip().encode(), partition=rng.randrange(PARTITIONS))
    assert producer.flush(60) == 0


if __name__ == "__main__":
    send(sys.argv[1], int(sys.argv[2]))


class Written(NamedTuple):
    """The parts of the log there are, who was forgotten, if windows have retired, and since which second all is there.

    Where a store has moved after windows had retired, the new one does not have what was before that.
    """

    parts: int
    forgotten: frozenset[str]
    retired: bool
    since: float

    def events(self) -> Iterator[Event]:
        """Yield the events of the log."""
        return chain.from_iterable(map(events_of, range(self.parts)))

    def rebuilt(self, store: Store) -> "Written":
        """Return what a rebuild of a store has: of its first window, some panes may have retired."""
        return self._replace(since=max(self.since, first_end(store))) if self.retired else self


Rows = dict[int, Counter[tuple[int, int, int, int]]]
"""By the start of a window, in milliseconds: how often each (user key, item key, milliseconds, label) is there."""


def check_events(store: Store, written: Written, window_seconds: int) -> int:
    """Each event is there once, but for those of forgotten users and of windows that have retired; returns how many."""
    found, wanted = _stored(store), _wanted(store, written, window_seconds)
    first = min(found if written.retired else wanted)
    for start in {start for start in wanted if start >= first} | found.keys():
        # Of the first windows, some panes may have retired, and what came late is there.
        is_whole = not written.retired or (start > first + 1000 * LATE and start >= 1000 * (ORIGIN + written.since))
        assert found[start] <= wanted[start], f"{start}: {found[start] - wanted[start]} is too much"
        assert not is_whole or found[start] == wanted[start], f"{start}: {wanted[start] - found[start]} is missing"
    return sum(rows.total() for rows in found.values())


def _stored(store: Store) -> Rows:
    log, found = WindowLog(store), defaultdict[int, Counter[Any]](Counter)
    for manifest in log.committed():
        rows = log.all_examples(manifest, ["user_key", "item_key", "timestamp", "label"])
        found[manifest.start_ms].update(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return found


def _wanted(store: Store, written: Written, window_seconds: int) -> Rows:
    found, layout = defaultdict[int, Counter[Any]](Counter), read_format(store)
    assert layout is not None
    key = partial(hash_id, secret=layout.key_secret)
    for event in written.events():
        if event.type != "view" and event.user not in written.forgotten:
            second, label = ORIGIN + event.second, 1 if event.type == "click" else -1
            start = 1000 * (second // window_seconds * window_seconds)
            found[start][key(event.user), key(event.item), 1000 * second, label] += 1
    return found


def check_bundles(store: Store) -> int:
    """Every bundle finds each of its items by the item's own vector; returns how many bundles there are."""
    log = BundleLog(store)
    for manifest in log.manifests():
        bundle = load_bundle(log, manifest.version)
        popularity = bundle.popularity[np.arange(len(bundle.popularity))]
        rows = np.flatnonzero(np.isfinite(popularity))
        assert len(rows) == bundle.items
        vectors = bundle.exact.vectors[rows]
        scores = bundle.index.search(vectors, 1, nprobe=bundle.index.lists).scores[:, 0]
        is_found = scores >= (vectors * vectors).sum(1) - 0.02
        assert is_found.mean() > (0.8 if "HNSW" in manifest.index.type else 0.999), manifest.version
    return len(log.manifests())


def check_users(port: int, written: Written, kept: int) -> int:
    """The server knows the last items of users, `kept` of each, and nothing of forgotten ones; returns how many."""
    compared = 0
    with RetrievalClient(f"127.0.0.1:{port}", timeout=20) as client:
        for user, items in _last_items(written, kept).items():
            asked = [by_user(user, K), by_history(items, K), by_user("stranger", K)]
            known, same, stranger = client.retrieve(asked).hits
            expected = stranger if user in written.forgotten else same
            assert np.allclose(known.scores, expected.scores, atol=1e-4), f"{user}: {known}, {expected}"
            compared += 1
    assert compared, "there is no user to ask about"
    return compared


def _last_items(written: Written, kept: int) -> dict[str, list[str]]:
    """Return the last items that users clicked; but for who clicked two of them in one second, or one too early."""
    clicks = defaultdict[str, list[tuple[int, str]]](list)
    for event in written.events():
        if event.type == "click":
            clicks[event.user].append((event.second, event.item))
    last = {user: sorted(all_of_them)[-kept - 1 :] for user, all_of_them in clicks.items()}
    clear = {user: some for user, some in last.items() if len({second for second, _ in some}) == len(some)}
    known = {user: some[-kept:] for user, some in clear.items() if some[-kept:][0][0] >= written.since}
    return {user: [item for _, item in some] for user, some in known.items()}
