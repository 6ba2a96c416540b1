"""The log of a store that lives, and what is said of its items beside: all of it follows from the number of a part."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.campaigns.lives import ROOT
from tests.readers.files import ORIGIN, Event, write_delimited, write_lines, write_parquet
from weir.contracts import Store, WindowLog
from weir.readers import is_topic

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
        subprocess.run([sys.executable, "-m", "tests.campaigns.life_topic", log, str(part)], check=True, cwd=ROOT)
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
