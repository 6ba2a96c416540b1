"""A following ingest is killed at random moments, again and again; every event is committed exactly once.

Run as a module this file is the hunter: it has imported Beam once and forks an ingest for every life, so that
a restart costs no imports. It must be a process of its own, because one that has run Beam cannot be forked.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from contracts import Store, WindowLog
from pipelines.config import PipelineConfig
from pipelines.ingest import ingest
from tests.pipelines import support
from tests.pipelines.support import Event

KILLS = 24
WINDOW_SECONDS = 5
USERS, ITEMS = 12, 30


def settings(folder: Path) -> PipelineConfig:
    return support.config(
        folder,
        poll_seconds=0.01,
        idle_seconds=0.3,
        window_seconds=WINDOW_SECONDS,
        chunk_bytes=2000,
        allowed_lateness_seconds=20,
    )


def events_of(part: int, rng: random.Random) -> list[Event]:
    """60 events over 100 s, some later than the allowed lateness; each (user, item, second) once, in some order."""
    seconds = [60 * part + rng.randrange(-80 if part > 2 else 0, 100) for _ in range(60)]
    return [
        Event(f"user-{rng.randrange(USERS)}", f"item-{part}-{number}", second, rng.choice(["click", "click", "skip"]),
              f"event-{part}-{number}")
        for number, second in enumerate(seconds)
    ]  # fmt: skip


def life(folder: Path, *, follow: bool) -> int:
    """Fork an ingest and return its process id."""
    if child := os.fork():
        return child
    try:
        ingest(Store(str(folder / "store")), settings(folder), follow=follow, registry=CollectorRegistry())
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - a fork must never return into the hunter
        print(repr(error), file=sys.stderr, flush=True)  # noqa: T201
        os._exit(1)


def write_part(folder: Path, part: int, events: list[Event]) -> Callable[[], None]:
    """Add events to the log in one of three ways; returns what completes it, for a writer that is slow."""
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


def hunt(folder: Path, seed: int) -> None:
    """Let KILLS lives begin, give each of them more to read, and kill it."""
    rng = random.Random(seed)
    log = WindowLog(Store(str(folder / "store")))
    for part in range(KILLS):
        child = life(folder, follow=True)
        complete = write_part(folder, part, events_of(part, random.Random(part)))
        known = len(log.committed())
        # Every other life ends right after a commit, with more of the same run to come; its wait is only a bound.
        after_commit = part % 2 == 1
        until = time.monotonic() + (20 if after_commit else rng.uniform(0.05, 1.6))
        while time.monotonic() < until and not (after_commit and len(log.committed()) > known):
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"life {part} ended by itself with status {status}"
        complete()
    _, status = os.waitpid(life(folder, follow=False), 0)
    assert status == 0, f"the last life ended with status {status}"


@pytest.mark.parametrize("seed", [1])
def test_killed_again_and_again_every_event_is_committed_once(tmp_path: Path, seed: int) -> None:
    (tmp_path / "log").mkdir()
    subprocess.run([sys.executable, "-m", "tests.integration.test_ingest_kill", tmp_path, str(seed)], check=True)
    store = Store(str(tmp_path / "store"))
    written = [event for part in range(KILLS) for event in events_of(part, random.Random(part))]
    assert support.stored_events(store) == support.expected_events(written, window_seconds=WINDOW_SECONDS)
    manifests = support.committed(store)
    assert sum(manifest.counts.events for manifest in manifests) == len(written)
    support.check_counts(store)
    support.check_histories(store, settings(tmp_path).history_length)
    dead = [line for path in (tmp_path / "store/dead-letters").rglob("0*.jsonl") for line in path.open()]
    assert len(dead) == sum(part % 3 == 1 for part in range(KILLS))
    unfinished = {manifest.run for manifest in manifests} - {m.run for m in manifests if m.last_of_run}
    assert unfinished, "no life was killed between two commits of one run: the test has not tested that"


if __name__ == "__main__":
    hunt(Path(sys.argv[1]), int(sys.argv[2]))
