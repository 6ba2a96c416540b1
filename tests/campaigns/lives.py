"""A hunter of one stage: ``python -m tests.campaigns.lives STAGE STORE SETTINGS KILLS``."""

# ruff: noqa: PLC0415 - a hunter imports the stage that it hunts, and no other

import logging
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaigns.hunter import hunt, moment
from weir.contracts import Store

ROOT = Path(__file__).parents[2]


def trainer(store: Store, settings: str) -> Callable[[], Any]:
    from weir.trainer.settings.trainer import TrainerConfig
    from weir.trainer.train import train

    return partial(train, store, TrainerConfig.model_validate_json(settings), follow=True)


def server(store: Store, settings: str) -> Callable[[], Any]:
    from weir.serving.config import ServingConfig
    from weir.serving.server import serve

    return partial(serve, store, ServingConfig.model_validate_json(settings))


def monitor(store: Store, settings: str) -> Callable[[], Any]:
    from weir.serving.monitor.config import MonitorConfig
    from weir.serving.monitor.loop import monitor as run

    return partial(run, store, MonitorConfig.model_validate_json(settings))


LONGEST = {"trainer": 6.0, "server": 3.0, "monitor": 2.0}
"""Seconds that a life lasts, at most: long enough that some lives get something done on a busy machine."""


def started(stage: str, store: Store, settings: str, kills: int, log: Path) -> "subprocess.Popen[bytes]":
    """Start a hunter; its lives write to a log."""
    command = [sys.executable, "-m", "tests.campaigns.lives", stage, store.url, settings, str(kills)]
    with log.open("w") as file:
        return subprocess.Popen(command, stderr=file, cwd=ROOT)


def at_work(rng: random.Random, store: Store) -> None:
    """Wait for a checkpoint that was not there before, a minute at most, and then for a moment."""
    from weir.trainer.state.checkpoint import CheckpointLog

    names = CheckpointLog(store).names
    before, end = names(), time.monotonic() + 60
    while names() == before and time.monotonic() < end:
        time.sleep(0.01)
    moment(rng, 1.0)


def main(stage: str, url: str, settings: str, kills: str) -> None:
    logging.basicConfig(level=logging.INFO)
    store = Store(url)
    live = {"trainer": trainer, "server": server, "monitor": monitor}[stage](store, settings)
    rng = random.Random(stage)
    waits = [partial(moment, rng, LONGEST[stage]), partial(at_work, rng, store)]
    # Every other trainer is killed at any time, and the others in their work, however slow the machine is.
    hunt(live, [waits[number % 2 if stage == "trainer" else 0] for number in range(int(kills))])


if __name__ == "__main__":
    main(*sys.argv[1:])
