"""Two pipelines follow one log into one store at once, as nothing prevents on an object store.

``python -m tests.campaigns.two_writers FOLDER STORE PARTS``: without the lock of local stores. Both follow until all
parts are committed; one more run ends what is left.
"""

import logging
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from threading import Event

from prometheus_client import CollectorRegistry

from tests.campaigns.hunter import finish, fork
from tests.campaigns.ingest_lives import settings, write_part
from weir.contracts import Store
from weir.pipelines.batch.ingest import _Driver, ingest
from weir.pipelines.metrics import PipelineMetrics


def follow(folder: Path, url: str) -> None:
    """Follow without the lock, until told to stop; the log says which commits were another's."""
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    driver = _Driver(Store(url), settings(folder), PipelineMetrics(CollectorRegistry()), None, stop)
    (folder / f"{os.getpid()}.ready").touch()
    while len(list(folder.glob("*.ready"))) < 2:
        time.sleep(0.01)
    driver.follow()


def main(folder: Path, url: str, parts: int) -> None:
    logging.basicConfig(level=logging.WARNING)
    complete = [write_part(folder, 0)]
    writers = [fork(partial(follow, folder, url)) for _ in range(2)]
    while len(list(folder.glob("*.ready"))) < 2:
        time.sleep(0.01)
    for part in range(1, parts):
        time.sleep(1.5)
        complete.pop()()
        complete.append(write_part(folder, part))
    complete.pop()()
    time.sleep(3)
    for writer in writers:
        os.kill(writer, signal.SIGTERM)
    statuses = [os.waitpid(writer, 0)[1] for writer in writers]
    assert statuses == [0, 0], f"the writers ended with statuses {statuses}"
    finish(partial(ingest, Store(url), settings(folder), registry=CollectorRegistry()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
