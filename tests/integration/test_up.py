"""`weir up --demo` on a short log: what it says on the way, and what its store takes after the end of the replay."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import pytest

from weir.contracts import BundleLog, Store
from weir.demo.generator import GeneratorConfig, generate
from weir.up.ports import PORTS

pytestmark = pytest.mark.timeout(1200)

WAIT = 500.0


@dataclass
class Up:
    """A running `weir up`; `lines` is what it has said so far."""

    process: subprocess.Popen[str]
    store: Store
    lines: list[str] = field(default_factory=list)

    def said(self, pattern: str) -> "re.Match[str]":
        """Return the first line that fits, once there is one."""
        ends = time.monotonic() + WAIT
        while time.monotonic() < ends and self.process.poll() is None:
            for line in list(self.lines):
                if found := re.search(pattern, line):
                    return found
            time.sleep(0.1)
        raise AssertionError(f"not said: {pattern}\n" + "\n".join(self.lines))


def weir(*command: str) -> str:
    return subprocess.run([sys.executable, "-m", "weir", *command], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    log, store = folder / "generated.jsonl", Store(str(folder / "store"))
    log.write_bytes(generate(GeneratorConfig(users=60, items=80, events=3000, days=10)).lines)
    ports = [part for key in PORTS for part in ("--set", f"{key}=0")]
    types = ["--set", "pipeline.event_types.play=positive", "--set", "pipeline.event_types.skip=negative"]
    command = ["up", "--demo", "--log", str(log), "--ranks", "1", "--store", store.url, *types, *ports]
    process = subprocess.Popen(
        [sys.executable, "-m", "weir", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "COLUMNS": "400"},
    )
    running = Up(process, store)

    def listen() -> None:
        assert process.stderr is not None
        running.lines.extend(line.rstrip("\n") for line in process.stderr)

    listener = Thread(target=listen)
    listener.start()
    yield running
    process.send_signal(signal.SIGINT)
    process.wait(120)
    listener.join()
    assert "Traceback" not in "\n".join(running.lines)


def test_it_says_what_is_awaited_then_what_to_ask_and_at_the_end_what_is_next(up: Up) -> None:
    up.said("starting: the replay begins when the trainer is ready")
    up.said("served: nothing yet: waiting for the first events")
    asked = shlex.split(up.said(r"answers after [\d.]+ s; try: \S*weir (query .*)").group(1))
    assert "bundle 0" in weir(*asked)
    ended = up.said(
        r"the replay is over, and all of it is learned; next: \S*weir (click .*) changes the answer on (\S+)"
    )
    with urllib.request.urlopen(ended.group(2)) as page:  # noqa: S310
        assert page.status == 200
    changed: dict[str, Any] = json.loads(weir(*shlex.split(ended.group(1)), "--timeout", "300", "--json"))
    assert (changed["is_served"], changed["held"]) == (True, None)
    assert changed["seconds"] is not None


def test_five_clicks_after_the_end_are_five_windows_each_of_which_is_served(up: Up) -> None:
    up.said("the replay is over")
    log = BundleLog(up.store)
    for number in range(5):
        before = log.manifest(str(log.current())).trained_sequence
        weir("click", f"somebody-{number}", f"something-new-{number}", "--store", up.store.url)
        ends = time.monotonic() + WAIT
        while log.manifest(str(log.current())).trained_sequence == before:
            assert time.monotonic() < ends, weir("inspect", "bundles", "--store", up.store.url)
            time.sleep(0.2)
    assert all(manifest.promoted for manifest in log.manifests()[-5:])
