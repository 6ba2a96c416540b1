"""The hunter of a redaction: it is killed while it forgets users, beside a pipeline that follows a growing log.

``python -m tests.campaigns.forget_lives FOLDER SEED KILLS``
"""

import logging
import random
import sys
import time
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.campaigns.hunter import finish, fork, hunt, kill, moment
from tests.campaigns.ingest_lives import settings, write_part
from weir.contracts import CommitLog, LogState, Store
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.maintenance.cleanup import Erasure
from weir.pipelines.maintenance.erased_files import Forgotten
from weir.pipelines.maintenance.erasure import forget_users

FORGOTTEN = ("user-1", "user-2", "user-3")
LONGEST = 0.6
"""Seconds that a life lasts, at most."""


def forget(folder: Path, *ids: str) -> None:
    store = Store(str(folder / "store"))
    forget_users(store, settings(folder), Forgotten.of(ids))


def forget_whoever_comes(folder: Path, one: str) -> None:
    """A life that has always something to forget, as the pipeline counts new events of the user."""
    while True:
        forget(folder, one)


def end(folder: Path) -> None:
    store = Store(str(folder / "store"))
    ingest(store, settings(folder), registry=CollectorRegistry())
    forget(folder, *FORGOTTEN)
    Erasure(store, -1.0).run(LogState.open(store))


def wait_for_redaction(store: Store, known: int) -> None:
    """Wait until users have been forgotten once more, 20 s at most."""
    ends = time.monotonic() + 20
    while time.monotonic() < ends and LogState.open(store).redaction == known:
        time.sleep(0.005)


def main(folder: Path, seed: int, kills: int) -> None:
    logging.basicConfig(level=logging.WARNING)
    rng, store = random.Random(seed), Store(str(folder / "store"))
    pipeline = fork(partial(ingest, store, settings(folder), follow=True, registry=CollectorRegistry()))
    for part in range(kills):
        known = CommitLog(store).newest() if part else -1
        write_part(folder, part)()
        moment(rng, 20.0, lambda known=known: CommitLog(store).newest() > known)
        # Every other life ends right after a commit.
        after_commit = partial(wait_for_redaction, store, LogState.open(store).redaction)
        wait = after_commit if part % 2 else partial(moment, rng, LONGEST)
        hunt(partial(forget_whoever_comes, folder, FORGOTTEN[part % 3]), [wait])
    kill(pipeline)
    finish(partial(end, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
