"""Ranks on three machines, which are network namespaces here: machines are lost, cut off, added and asked to stop."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.test_training_restart import CONFIG, ENVIRONMENT, final
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, Store
from weir.trainer.state.checkpoint import CheckpointLog

PORT = 29400
TIMEOUT = 5.0
WINDOWS = 60
BRIDGE = f"wb{os.getpid()}"


def may_make_machines() -> bool:
    """Say whether there is the tool and the right to make network namespaces."""
    if shutil.which("ip") is None:
        return False
    tried = [subprocess.run(["ip", "netns", verb, BRIDGE], capture_output=True, check=False) for verb in ("add", "del")]
    return not any(done.returncode for done in tried)


pytestmark = pytest.mark.skipif(
    not may_make_machines(), reason="needs iproute2 and the right to make network namespaces"
)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@dataclass
class Machine:
    """A network namespace with an address, in which `weir train` runs."""

    number: int
    store: Store
    folder: Path
    log: list[Path] = field(default_factory=list)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def name(self) -> str:
        return f"{BRIDGE}n{self.number}"

    @property
    def address(self) -> str:
        return f"10.213.7.{self.number}"

    def start(self) -> None:
        """Start to train."""
        self.log.append(self.folder / f"{self.number}-{len(self.log)}.log")
        nodes = ["--nodes", "1:3", "--meet", f"10.213.7.1:{PORT}", "--address", self.address, "--restarts", "20"]
        command = [
            sys.executable,
            "-m",
            "weir",
            "train",
            "--follow",
            *nodes,
            "--config",
            str(self.folder / "weir.yaml"),
        ]
        with self.log[-1].open("wb") as output:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command], env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT
            )

    def lose(self) -> None:
        """End it without a word; its rank dies with the launcher."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def cut_off(self) -> None:
        """Let nothing reach it, and nothing leave it, while it runs."""
        ip("link", "set", f"{BRIDGE}v{self.number}", "down")

    def text(self) -> str:
        return "".join(path.read_text() for path in self.log)


@contextmanager
def machines(store: Store, folder: Path) -> Iterator[list[Machine]]:
    """Three machines on one network."""
    trainer = CONFIG.model_dump(mode="json") | {"rank_timeout_seconds": TIMEOUT, "checkpoint_every_steps": 20}
    settings = {"store": store.url, "pipeline": {"exposed_items": 3}, "trainer": trainer}
    (folder / "weir.yaml").write_text(json.dumps(settings))
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("link", "set", BRIDGE, "up")
    found = [Machine(number, store, folder) for number in (1, 2, 3)]
    with ExitStack() as stack:
        stack.callback(ip, "link", "delete", BRIDGE)
        for machine in found:
            outer, inner = f"{BRIDGE}v{machine.number}", f"{BRIDGE}i{machine.number}"
            ip("netns", "add", machine.name)
            stack.callback(ip, "netns", "delete", machine.name)
            ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", machine.name)
            stack.callback(ip, "link", "delete", outer)
            ip("link", "set", outer, "master", BRIDGE, "up")
            ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", inner)
            ip("-n", machine.name, "link", "set", inner, "up")
            ip("-n", machine.name, "link", "set", "lo", "up")
            stack.callback(machine.lose)
        yield found


def until(condition: Callable[[], bool], found: list[Machine], seconds: float = 180) -> float:
    """Wait until something holds; return how many seconds it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + seconds, "\n".join(machine.text()[-3000:] for machine in found)
        time.sleep(0.05)
    return time.monotonic() - started


def trained_by(store: Store, first: Machine, ranks: int) -> Callable[[], bool]:
    """Return what says whether so many ranks have trained, started after now."""
    known, newest = len(first.text()), CheckpointLog(store).names()[-1:]

    def check() -> bool:
        return f"training with {ranks} ranks," in first.text()[known:] and CheckpointLog(store).names()[-1:] > newest

    return check


def test_the_run_goes_on_with_the_machines_that_are_there(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    synthetic(WindowWriter(store), windows=WINDOWS, events=600, exposed=3, said=True)
    took = {}
    with machines(store, tmp_path) as found:
        one, two, three = found
        for machine in (one, two):
            machine.start()
        took["two meet"] = until(trained_by(store, one, 2), found)
        goes_on = trained_by(store, one, 1)
        two.lose()
        took["one is lost"] = until(goes_on, found)
        goes_on = trained_by(store, one, 3)
        for machine in (two, three):
            machine.start()
        took["two are added"] = until(goes_on, found)
        goes_on = trained_by(store, one, 2)
        three.cut_off()
        took["one is cut off"] = until(goes_on, found)
        goes_on = trained_by(store, one, 1)
        assert two.process is not None
        two.process.send_signal(signal.SIGTERM)
        took["one is asked to stop"] = until(goes_on, found)
        assert two.process.wait(timeout=30) == 0
        assert one.process is not None
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(timeout=60) == 0, one.text()[-3000:]
    print({name: round(seconds, 1) for name, seconds in took.items()})  # noqa: T201
    state = final(store)
    newest = BundleLog(store).current()
    assert newest is not None
    assert newest.startswith(f"{state.position.trained_sequence:08d}-{state.position.step:010d}-")
    # Each window was tested on once, and nothing was left out.
    assert len(list(store.glob("evaluations/*/*.json"))) >= state.position.trained_sequence
    assert state.position.trained_sequence < WINDOWS - 1, "too few windows to tell anything"
