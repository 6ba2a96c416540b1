"""The hunter of a rebuild: it is killed while it follows its origin, which grows, and while it cuts over.

``python -m tests.campaigns.rebuild_lives FOLDER SEED KILLS``
"""

import logging
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.campaigns.hunter import finish, hunt, moment
from tests.campaigns.ingest_lives import settings, write_part
from weir.contracts import CommitLog, Store
from weir.pipelines.batch.cut_over import cut_over
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.batch.rebuild import WindowSource, prepare
from weir.pipelines.config import PipelineConfig

WINDOW_SECONDS = 12
LONGEST = 2.0
"""Seconds that a life lasts, at most."""


def parts(kills: int) -> tuple[int, int]:
    """Return how many parts of the log the origin reads, and how many there are in all."""
    return kills, kills + kills // 2


def other_settings(folder: Path) -> PipelineConfig:
    changes = {"window_seconds": WINDOW_SECONDS, "user_shards": 3, "history_length": 5, "run_bytes": 3000}
    return settings(folder).model_copy(update=changes)


def lives(folder: Path) -> tuple[Callable[[], object], Callable[[], object], Callable[[], object]]:
    """Return the lives of the origin's pipeline, of the rebuild that follows it, and of the cut-over."""
    origin, store = Store(str(folder / "origin")), Store(str(folder / "store"))

    def follow() -> None:
        config = prepare(origin, store, other_settings(folder))
        source = WindowSource(origin, config)
        ingest(store, config, follow=True, registry=CollectorRegistry(), source=source)

    def cut() -> None:
        cut_over(origin, store, prepare(origin, store, other_settings(folder)))

    return partial(ingest, origin, settings(folder), registry=CollectorRegistry()), follow, cut


def _has_more(store: Store, known: int) -> bool:
    return CommitLog(store).newest() > known


def main(folder: Path, seed: int, kills: int) -> None:
    logging.basicConfig(level=logging.WARNING)
    rng = random.Random(seed)
    grow, follow, cut = lives(folder)
    store = Store(str(folder / "store"))
    read, written = parts(kills)
    for part in range(read):
        write_part(folder, part)()
        finish(grow)
        # Every other life ends right after a commit; its wait is only a bound.
        known = CommitLog(store).newest()
        longest, until = (20.0, partial(_has_more, store, known)) if part % 2 else (LONGEST, lambda: False)
        hunt(follow, [partial(moment, rng, longest, until)])

    def cut_and_wait() -> None:
        cut()
        signal.pause()

    for part in range(read, written):
        # The origin has not read these; its rebuild reads them where the origin stood.
        write_part(folder, part)()
        hunt(cut_and_wait, [partial(moment, rng, LONGEST)])
    finish(cut)
    finish(lambda: ingest(store, other_settings(folder), registry=CollectorRegistry()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
