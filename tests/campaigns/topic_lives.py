"""The hunter of an ingest that follows a topic, while another process writes to it.

``python -m tests.campaigns.topic_lives FOLDER URL SEED KILLS``
"""

import logging
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.campaigns.hunter import hunt, moment
from tests.campaigns.ingest_lives import ITEMS, USERS, WINDOW_SECONDS
from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import Store, WindowLog
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig

LATENESS = 20


def settings(folder: Path, url: str) -> PipelineConfig:
    return support.config(
        folder,
        log=url,
        kafka={"timeout_seconds": 10},
        poll_seconds=0.01,
        idle_seconds=0.3,
        window_seconds=WINDOW_SECONDS,
        chunk_rows=200,
        chunk_bytes=20_000,
        run_bytes=200_000,
        allowed_lateness_seconds=LATENESS,
    )


def events_at(second: int, rng: random.Random) -> list[tuple[bytes, Event | None]]:
    """Messages of one second, with their events: one in 100 malformed, some twice, some later than is allowed."""
    found: list[tuple[bytes, Event | None]] = []
    for number in range(20):
        late = rng.randrange(2 * LATENESS, 4 * LATENESS) if rng.random() < 0.01 else 0
        event = Event(
            f"user-{rng.randrange(USERS)}",
            f"item-{second}-{number}-{rng.randrange(ITEMS)}",
            max(0, second - late),
            rng.choice(["click", "click", "skip"]),
            f"event-{second}-{number}",
        )
        line = event.line().encode()
        found.append((line[: len(line) // 2], None) if rng.random() < 0.01 else (line, event))
        found += found[-1:] if found[-1][1] and rng.random() < 0.01 else []
    return found


def moments(folder: Path, rng: random.Random, kills: int) -> Iterator[Callable[[], None]]:
    """Yield how each life is waited for; afterwards note which runs it was killed in.

    Every other life ends right after a commit; its wait is only a bound.
    """
    log = WindowLog(Store(str(folder / "store")))
    for number in range(kills):
        known = len(log.committed())
        longest = 10.0 if number % 2 else 2.5
        yield partial(moment, rng, longest, partial(_has_more, log, known if number % 2 else sys.maxsize))
        with (folder / "killed").open("a") as file:
            file.writelines(f"{mark.parent.name}\n" for mark in (folder / "store/state/runs").glob("*/started.json"))


def _has_more(log: WindowLog, known: int) -> bool:
    return len(log.committed()) > known


def main(folder: Path, url: str, seed: int, kills: int) -> None:
    logging.basicConfig(level=logging.WARNING)
    live = partial(ingest, Store(str(folder / "store")), settings(folder, url), follow=True)
    hunt(lambda: live(registry=CollectorRegistry()), moments(folder, random.Random(seed), kills))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
