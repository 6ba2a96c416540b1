"""Ranks on several nodes, as a StatefulSet starts them: a launcher for each, one of which is lost and comes back."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.test_training_restart import CONFIG, ENVIRONMENT, final, started
from tests.ports import free_port
from tests.trainer.support import same_tensors
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, Store
from weir.trainer.state.checkpoint import CheckpointLog


@dataclass
class Node:
    """One pod of the StatefulSet, with one rank; ended badly it is started again, as the kubelet does."""

    command: list[str]
    log: Path
    restarts: int = -1
    process: "subprocess.Popen[bytes] | None" = None

    def finished(self) -> bool:
        """Say whether it has ended well; start it if it does not run."""
        if self.process is not None and self.process.poll() in {None, 0}:
            return self.process.returncode == 0
        self.restarts += 1
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(self.command, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT)
        return False

    def lose(self) -> None:
        """Take the node away without a word; its rank dies with the launcher."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def nodes(store: Store, folder: Path) -> Iterator[list[Node]]:
    settings = folder / "weir.yaml"
    trainer = CONFIG.model_dump(mode="json")
    settings.write_text(json.dumps({"store": store.url, "pipeline": {"exposed_items": 3}, "trainer": trainer}))
    place = ["--nodes", "2", "--meet", f"127.0.0.1:{free_port()}", "--restarts", "10"]
    command = [sys.executable, "-m", "weir", "train", "--config", str(settings), *place]
    both = [Node([*command, "--address", f"127.0.0.{number}"], folder / f"{number}.log") for number in (1, 2)]
    try:
        yield both
    finally:
        for node in both:
            if node.process is not None and node.process.poll() is None:
                node.lose()


def wait_until(condition: Callable[[], bool], both: list[Node], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        for node in both:
            node.finished()
        assert time.monotonic() < end, "".join(node.log.read_text()[-3000:] for node in both)
        time.sleep(0.02)


def progress(store: Store) -> str:
    """Return the newest checkpoint; names sort in the order of the stream."""
    return max(CheckpointLog(store).names(), default="")


def test_nodes_that_are_lost_come_back_and_the_run_ends_bit_for_bit_where_it_would_have(tmp_path: Path) -> None:
    whole, disturbed = Store(str(tmp_path / "whole")), Store(str(tmp_path / "disturbed"))
    for store in (whole, disturbed):
        synthetic(WindowWriter(store), windows=4, events=400, exposed=3, said=True)
    assert started(whole, tmp_path / "one node, two ranks").wait(timeout=100) == 0
    with nodes(disturbed, tmp_path) as both:
        # One of the two holds the place where they meet: the other cannot go on without it.
        for node in both:
            before = progress(disturbed)
            wait_until(lambda: progress(disturbed) > before, both)  # noqa: B023 - called before it changes
            node.lose()
        wait_until(lambda: all(node.finished() for node in both), both)
        assert min(node.restarts for node in both) >= 1
        # Ranks go by address, so whoever scrapes the first node finds rank 0, however often nodes come and go.
        assert ["metrics on port" in node.log.read_text() for node in both] == [True, False]
    assert same_tensors(final(whole).tensors(), final(disturbed).tensors()) == []
    newest = BundleLog(whole).current()
    assert newest == BundleLog(disturbed).current()
    assert whole.read(f"bundles/{newest}/vectors.npy") == disturbed.read(f"bundles/{newest}/vectors.npy")
