"""A Beam Python worker, as a process that the pool forks."""

import logging
import multiprocessing
import os
import threading

from apache_beam.runners.worker.sdk_worker import SdkHarness

__all__ = ["set_up_logging", "work"]


def work(control: str, name: str) -> None:
    """Process bundles from the control endpoint until it closes the connection or the pool ends."""
    set_up_logging()
    threading.Thread(target=_end_with_pool, daemon=True).start()
    SdkHarness(control, worker_id=name).run()


def set_up_logging() -> None:
    """Log to standard error, with the process id."""
    # force: Beam has configured logging already.
    form = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, force=True)


def _end_with_pool() -> None:
    """Wait for the end of the pool's process, then end this process."""
    pool = multiprocessing.parent_process()
    assert pool is not None  # noqa: S101 - a worker is never started otherwise
    pool.join()
    os._exit(1)
