"""What runs beside a store that lives: a server, a monitor, and somebody who asks without pause."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from tests.campaigns.life_log import GUESTS, USERS, K
from tests.campaigns.lives import ROOT
from tests.ports import free_port
from weir.serving.client import Hits, RetrievalClient, RetrievalError, by_history, by_user

_TAKEN_DOWN: Final = 4.0
"""Seconds after which an item that is taken down is in no answer."""


def weir(folder: Path, *arguments: str) -> list[str]:
    """Return a command with the settings of a life."""
    return [sys.executable, "-m", "weir", *arguments, "--config", str(folder / "weir.yaml")]


def settings_in(folder: Path) -> dict[str, Any]:
    """Return the settings of a life as they are."""
    found: dict[str, Any] = yaml.safe_load((folder / "weir.yaml").read_text())
    return found


@contextmanager
def stage(folder: Path, name: str, *arguments: str) -> Iterator[None]:
    """Run a stage beside; it must be there until the end, and log no error."""
    log = folder / f"{name}-{len(list(folder.glob(f'{name}-*.log')))}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            weir(folder, name, *arguments), stderr=out, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=ROOT
        )
    try:
        yield
        assert process.poll() is None, log.read_text()
        assert not {"ERROR", "Traceback"} & set(log.read_text().split()), log.read_text()
    finally:
        process.terminate()
        assert process.wait(60) == 0


def settled(what: Callable[[], object], within: float = 120) -> None:
    """Wait until something is so."""
    ends = time.monotonic() + within
    while not what():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.05)


@dataclass
class Load:
    """Asks a server without pause; from its first answer on no call may fail, and no answer be wrong in itself."""

    takedown: Path | None
    has_tags: bool
    port: int = 0
    asked: int = 0
    """The port that is asked now; it follows the other one."""
    done: threading.Event = field(default_factory=threading.Event)
    versions: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def drawn(cls, settings: dict[str, Any]) -> "Load":
        """Return what can be asked of a life with these settings."""
        down = settings.get("takedown")
        return cls(down and Path(down), has_tags="catalogue" in settings)

    def __call__(self) -> None:
        rng = np.random.default_rng(0)
        settled(lambda: self.port)
        while not self.done.is_set():
            self.asked = self.port
            self._ask_on(rng)

    def _ask_on(self, rng: np.random.Generator) -> None:
        with RetrievalClient(f"127.0.0.1:{self.asked}", timeout=20) as client:
            while self.asked == self.port and not self.done.is_set():
                try:
                    self._ask(client, rng)
                except RetrievalError as error:
                    self.wrong += [str(error)] if self.versions else []
                    time.sleep(0.1)
                time.sleep(0.003)

    def _ask(self, client: RetrievalClient, rng: np.random.Generator) -> None:
        wishes: list[dict[str, Any]] = [{}, {"exact": True}, {"exclude_seen": True}]
        wishes += [{"any_tags": ["a", "b"]}, {"max_per_tag": 3}] if self.has_tags else []
        users = [f"user-{rng.integers(USERS)}", f"{GUESTS}{rng.integers(10)}", "stranger"]
        asked = [*(by_user(user, K) for user in users), by_history(["item-1-0", "item-2-0"], K)]
        wish, before = wishes[rng.integers(len(wishes))], self._down()
        answer = client.retrieve(asked, **wish)
        gone = before & self._down()
        # A cap on tags may leave fewer.
        least = 0 if "max_per_tag" in wish else K
        self.wrong += [f"{answer.bundle_version}: {hits}" for hits in answer.hits if not is_sound(hits, least, gone)]
        self.versions[answer.bundle_version] += 1

    def _down(self) -> set[str]:
        """Return the items that were taken down some time ago."""
        if self.takedown is None or time.time() - self.takedown.stat().st_mtime < _TAKEN_DOWN:
            return set()
        return set(self.takedown.read_text().split())


def is_sound(hits: Hits, least: int, gone: set[str]) -> bool:
    """Say whether items are distinct, best first, as many as there must be, and none of those that are gone."""
    scores, ids = hits.scores.tolist(), set(hits.item_ids)
    is_whole = len(ids) == len(hits.item_ids) and (least <= len(ids) <= K or not hits.complete)
    return is_whole and scores == sorted(scores, reverse=True) and not ids & gone


@dataclass
class Beside:
    """A server and a monitor of a store, and who asks it; where the store moves, others take their place."""

    folder: Path
    load: Load
    store: str = ""
    moves: int = 0
    _stages: ExitStack = field(default_factory=ExitStack)

    def follow(self) -> None:
        """Replace server and monitor where the store has moved: callers change over before the old ones end."""
        if (store := settings_in(self.folder)["store"]) == self.store:
            return
        with ExitStack() as starting:
            port = free_port()
            starting.enter_context(stage(self.folder, "serve", "--port", str(port)))
            starting.enter_context(stage(self.folder, "monitor", "--set", f"monitor.target=127.0.0.1:{port}"))
            if self.store:
                settled(partial(answers, port))
            self.load.port = port
            settled(lambda: self.load.asked == port)
            old, self._stages = self._stages, starting.pop_all()
        self.moves += bool(self.store)
        self.store = store
        old.close()

    def close(self) -> None:
        """End both."""
        self._stages.close()


def answers(port: int) -> bool:
    """Say whether a server serves a bundle."""
    with RetrievalClient(f"127.0.0.1:{port}") as client, suppress(RetrievalError):
        return bool(client.info().bundle_version)
    return False


@contextmanager
def asking(load: Load) -> Iterator[None]:
    """Ask a server meanwhile; at least once."""
    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield
        settled(lambda: load.versions)
    finally:
        load.done.set()
        thread.join()
    assert load.wrong == []
