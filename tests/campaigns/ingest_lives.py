"""The hunter of a following ingest: each life gets more to read, and is killed while it reads or commits.

``python -m tests.campaigns.ingest_lives FOLDER SEED KILLS``
"""

import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.campaigns.hunter import finish, hunt, moment
from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import Store, WindowLog
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.pipelines.histories import compaction as merger
from weir.pipelines.histories import merging

WINDOW_SECONDS = 5
USERS, ITEMS = 12, 30
WHOLE = 7
"""Lives that are not killed, at the end: one more than the files of a shard that are left unmerged."""


def settings(folder: Path) -> PipelineConfig:
    return support.config(
        folder,
        poll_seconds=0.01,
        idle_seconds=0.3,
        window_seconds=WINDOW_SECONDS,
        chunk_bytes=2000,
        allowed_lateness_seconds=20,
    )


def events_of(part: int) -> list[Event]:
    """60 events over 100 s, some later than the allowed lateness; each (user, item, second) once, in some order."""
    rng = random.Random(part)
    seconds = [60 * part + rng.randrange(-80 if part > 2 else 0, 100) for _ in range(60)]
    return [
        Event(f"user-{rng.randrange(USERS)}", f"item-{part}-{number}", second, rng.choice(["click", "click", "skip"]),
              f"event-{part}-{number}")
        for number, second in enumerate(seconds)
    ]  # fmt: skip


def write_part(folder: Path, part: int) -> Callable[[], None]:
    """Add events to the log in one of three ways; returns what completes it, for a writer that is slow."""
    events = events_of(part)
    lines = [event.line() for event in events]
    repeated = lines[::7]
    if part % 3 == 0:
        whole = "".join(lines + repeated)
        half = len(whole) // 2
        support.write_lines(folder / "log/growing.jsonl", [whole[:half]])
        return lambda: support.write_lines(folder / "log/growing.jsonl", [whole[half:]])
    temporary = folder / "log/.part.tmp"
    if part % 3 == 1:
        support.write_gzip(temporary, [*lines, "not json\n"])
        temporary.rename(folder / f"log/{part:03d}.jsonl.gz")
    else:
        support.write_parquet(temporary, events, row_group=25)
        temporary.rename(folder / f"log/{part:03d}.parquet")
    return lambda: None


def moments(folder: Path, rng: random.Random, kills: int) -> Iterator[Callable[[], None]]:
    """Yield how each life is waited for; afterwards note which runs it was killed in, and complete what it was given.

    Every other life ends after a commit, right then or while its histories are merged; its wait is only a bound.
    """
    log = WindowLog(Store(str(folder / "store")))
    for part in range(kills):
        complete = write_part(folder, part)
        known = len(log.committed())
        if part % 2:
            until = time.monotonic() + 20
            yield partial(_wait_for_commit, log, known, until, merging=rng.uniform(0, 0.3) if part % 4 == 3 else 0)
        else:
            yield partial(moment, rng, 1.6)
        with (folder / "killed").open("a") as file:
            file.writelines(f"{mark.parent.name}\n" for mark in (folder / "store/state/runs").glob("*/started.json"))
        complete()


def _wait_for_commit(log: WindowLog, known: int, until: float, *, merging: float) -> None:
    while time.monotonic() < until and len(log.committed()) == known:
        time.sleep(0.002)
    time.sleep(merging)


def main(folder: Path, seed: int, kills: int) -> None:
    logging.basicConfig(level=logging.WARNING)
    # Merges of many blocks, and files that are deleted soon after: so that kills meet both.
    merging._USERS_AT_ONCE, merger.REPLACED_SECONDS = 1, 0.5
    live = partial(ingest, Store(str(folder / "store")), settings(folder))
    hunt(lambda: live(follow=True, registry=CollectorRegistry()), moments(folder, random.Random(seed), kills))
    # Whole lives, so that there is something to merge however few commits the others made.
    for part in range(kills, kills + WHOLE):
        write_part(folder, part)()
        finish(lambda: live(follow=False, registry=CollectorRegistry()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
