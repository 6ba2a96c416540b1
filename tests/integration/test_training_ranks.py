"""Ranks of one machine, started by `weir train`: where they listen, and how long they wait for rank 0."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_training_restart import CONFIG, ENVIRONMENT, ROOT, wait_until
from tests.ports import free_port
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, Store
from weir.trainer.state.checkpoint import CheckpointLog

PROC = Path("/proc")
LISTEN = "0A"
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}
"""127.0.0.1 and ::1 as /proc/net/tcp and tcp6 write them."""


def tree(root: int) -> set[int]:
    """Return a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for status in PROC.glob("[0-9]*/stat"):
        try:
            pid, rest = status.read_text().split(" ", 1)
        except OSError:
            continue
        children.setdefault(int(rest.rsplit(")", 1)[1].split()[1]), []).append(int(pid))
    found, open_ones = {root}, [root]
    while open_ones:
        new = children.get(open_ones.pop(), [])
        found |= set(new)
        open_ones += new
    return found


def ranks_of(launcher: int) -> set[int]:
    """Return the processes that are ranks."""
    found = set()
    for pid in tree(launcher):
        try:
            command = (PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        if b"train-worker" in command:
            found.add(pid)
    return found


def sockets_of(pid: int) -> Iterator[str]:
    """Return the inodes of a process's sockets; a process that has just ended has none."""
    try:
        descriptors = list((PROC / str(pid) / "fd").iterdir())
    except FileNotFoundError:
        return
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def listening(root: int) -> dict[int, str]:
    """Return the ports on which a process tree listens, with their addresses."""
    inodes = {inode for pid in tree(root) for inode in sockets_of(pid)}
    found = {}
    for table in ("tcp", "tcp6"):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            address, port = fields[1].split(":")
            if fields[3] == LISTEN and fields[9] in inodes:
                found[int(port, 16)] = address
    return found


@pytest.mark.skipif(not (PROC / "net/tcp").exists(), reason="reads Linux's /proc")
def test_ranks_of_one_machine_listen_on_loopback_only(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    writer = WindowWriter(store)
    synthetic(writer, windows=1, exposed=3)
    metrics = free_port()
    settings = tmp_path / "weir.yaml"
    trainer = CONFIG.model_dump(mode="json") | {"metrics_port": metrics}
    settings.write_text(json.dumps({"store": store.url, "pipeline": {"exposed_items": 3}, "trainer": trainer}))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "weir", "train", "--follow", "--ranks", "2", "--config", str(settings)],
            env=ENVIRONMENT | {"TMPDIR": str(temporary)},
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    seen: dict[int, str] = {}
    ranks: list[set[int]] = [set()]

    def trained(windows: int, new_ranks: int) -> bool:
        # Looking through /proc without a pause would take the processor from the ranks.
        time.sleep(0.2)
        seen.update(listening(process.pid))
        ranks[-1] |= ranks_of(process.pid)
        newest = max(CheckpointLog(store).names(), default="")
        return newest.endswith(f"-{windows:08d}-00000000") and len(ranks[-1] - ranks[0]) >= new_ranks

    def beyond() -> dict[int, str]:
        """Return what listens beyond loopback; rank 0's metrics are served where the settings say."""
        return {port: address for port, address in seen.items() if port != metrics and address not in LOOPBACK}

    try:
        assert wait_until(lambda: trained(1, 0), process, 120), (tmp_path / "log").read_text()
        assert len(ranks[0]) == 2
        assert metrics in seen
        assert beyond() == {}
        # A rank that is killed comes back, and still nothing listens beyond.
        ranks.append(set())
        os.kill(max(ranks[0]), signal.SIGKILL)
        synthetic(writer, first=1, windows=1, exposed=3)
        assert wait_until(lambda: trained(2, 2), process, 120), (tmp_path / "log").read_text()
        assert beyond() == {}
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0, (tmp_path / "log").read_text()
    finally:
        if process.poll() is None:
            process.kill()
    assert list(temporary.iterdir()) == []


SLOW_EXPORT = """
import sys, time
from datetime import timedelta
from torch.distributed import distributed_c10d
from weir.trainer.export import exporter
from tests.integration import train_worker

distributed_c10d.default_pg_timeout = timedelta(seconds=3)
plain = exporter.export_bundle

def slow(*arguments):
    time.sleep(9)
    return plain(*arguments)

exporter.export_bundle = slow
train_worker.main(*sys.argv[1:])
"""


def test_an_export_longer_than_the_timeout_of_collectives_does_not_end_the_ranks(tmp_path: Path) -> None:
    store, notes = Store(str(tmp_path / "store")), tmp_path / "notes"
    synthetic(WindowWriter(store), windows=2, exposed=3)
    notes.mkdir()
    script = tmp_path / "slow.py"
    script.write_text(SLOW_EXPORT)
    settings = CONFIG.model_copy(update={"export_every_windows": 1}).model_dump_json()
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, str(script), store.url, settings, str(notes), "bounded"]
    started = time.monotonic()
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert time.monotonic() - started > 18
    assert len(BundleLog(store).versions()) == 2
    assert all((notes / f"{rank}.summary").exists() for rank in (0, 1))
