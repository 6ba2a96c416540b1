"""Ranks of one machine: where they listen, and the same parameters after kills and restarts."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.ports import free_port
from tests.trainer.support import same_tensors
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, Store
from weir.contracts.verification import verify
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import NegativesConfig, TowerConfig, TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.stream.progress import TrainSummary

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


ROOT = Path(__file__).parents[2]
WORKER = ROOT / "tests/integration/train_worker.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
CONFIG = TrainerConfig(
    device="cpu",
    batch_size=16,
    tower=TowerConfig(dimension=8, history_length=6, dropout=0.1),
    negatives=NegativesConfig(uniform=16, exposed=2),
    evaluation_k=(5, 20),
    evaluation_examples=50,
    checkpoint_every_steps=7,
    export_every_windows=100,
    metrics_port=0,
    poll_seconds=0.05,
)


def started(
    store: Store,
    notes: Path,
    *,
    ranks: int = 2,
    restarts: int = 0,
    follow: bool = False,
    config: TrainerConfig = CONFIG,
) -> "subprocess.Popen[bytes]":
    notes.mkdir()
    arguments = [str(WORKER), store.url, config.model_dump_json(), str(notes), "follow" if follow else "bounded"]
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        f"--max-restarts={restarts}",
    ]
    launcher = [] if follow else torchrun
    with (notes / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *launcher, *arguments], env=ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT
        )


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[bytes]", seconds: float = 60) -> bool:
    """Return whether the condition came true before the process ended; fail after some time."""
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.005)
    return True


def step_reached(notes: Path) -> int:
    progress = notes / "progress"
    return max((int(line) for line in progress.read_text().split()), default=0) if progress.exists() else 0


def all_anew(notes: Path, before: list[str]) -> bool:
    now = [(notes / f"{rank}.pid").read_text() for rank in range(len(before))]
    return all(new not in {old, ""} for new, old in zip(now, before, strict=True))


def final(store: Store, config: TrainerConfig = CONFIG) -> TrainerState:
    state = CheckpointLog(store).load(config, Workers())
    assert state is not None
    return state


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_killed_at_random_end_bit_for_bit_where_an_unkilled_run_ends(tmp_path: Path, ranks: int) -> None:
    whole, killed = Store(str(tmp_path / "whole")), Store(str(tmp_path / "killed"))
    for store in (whole, killed):
        synthetic(WindowWriter(store), windows=5, events=600, exposed=3, said=True)
    assert started(whole, tmp_path / "unkilled", ranks=ranks).wait(timeout=100) == 0
    draw = random.Random()
    notes = tmp_path / "notes"
    process = started(killed, notes, ranks=ranks, restarts=3)
    kills: list[tuple[int, int]] = []
    for target in sorted(draw.sample(range(1, 150), 2)):
        if not wait_until(lambda target=target: step_reached(notes) >= target, process):  # type: ignore[misc]
            break
        time.sleep(draw.random() / 4)
        before = [(notes / f"{rank}.pid").read_text() for rank in range(ranks)]
        victim = draw.randrange(ranks)
        os.kill(int(before[victim]), signal.SIGKILL)
        kills.append((victim, step_reached(notes)))
        # torchrun starts all ranks again; one of them may be a moment later than the other.
        assert wait_until(lambda b=before: all_anew(notes, b), process)  # type: ignore[misc]
    assert process.wait(timeout=100) == 0, (kills, (notes / "log").read_text())
    assert len(kills) == 2
    assert same_tensors(final(whole).tensors(), final(killed).tensors()) == [], kills
    for name in whole.glob("evaluations/*/*.json"):
        assert whole.read(name) == killed.read(name), name
    newest = BundleLog(whole).current()
    assert newest == BundleLog(killed).current()
    assert whole.read(f"bundles/{newest}/vectors.npy") == killed.read(f"bundles/{newest}/vectors.npy")


def test_a_follower_asked_to_stop_saves_exports_and_ends_well(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    writer = WindowWriter(store)
    synthetic(writer, windows=1)
    notes = tmp_path / "notes"
    process = started(store, notes, follow=True)
    assert wait_until(lambda: BundleLog(store).versions() == [] or step_reached(notes) >= 25, process)
    synthetic(writer, windows=1, seed=5, step_ms=7_200_000)
    assert wait_until(lambda: step_reached(notes) == 50, process), (notes / "log").read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0
    summary = TrainSummary.model_validate_json((notes / "0.summary").read_text())
    assert (summary.windows, summary.stopped) == (2, True)
    assert summary.bundle is not None
    assert BundleLog(store).current() == summary.bundle
    assert summary.bundle.startswith("00000001-0000000050-")
    assert final(store).position.sequence == 2


LARGE = CONFIG.model_copy(
    update={"batch_size": 2048, "index": "IVF64,SQfp16", "export_every_windows": 1, "checkpoint_every_steps": 1000}
)


def commit_large(writer: WindowWriter, events: int) -> None:
    """Commit a window in which 70,000 items occur, or as many of them as there are events."""
    draw, number = np.random.default_rng(events), writer.sequence
    items = np.concatenate([np.arange(70_000), draw.integers(0, 70_000, max(0, events - 70_000))])[:events]
    times = 3_600_000 * number + np.sort(draw.integers(0, 3_600_000, events))
    users = [f"u{user}" for user in draw.integers(0, 2000, events)]
    writer.commit(users, [f"i{item}" for item in items], times, span=(3_600_000 * number, 3_600_000 * (number + 1)))


def test_a_follower_that_ends_while_it_makes_a_bundle_beside_makes_the_next_one(tmp_path: Path) -> None:
    """Killed, or asked to stop: what it has trained is that of a run that ended in its own time."""
    whole, killed = Store(str(tmp_path / "whole")), Store(str(tmp_path / "killed"))
    writers = [WindowWriter(store) for store in (whole, killed)]
    for events in (80_000, 20_000, 10_000):
        for writer in writers:
            commit_large(writer, events)
    log = BundleLog(killed)
    # So many lists take longer than a step and a checkpoint.
    hurried = LARGE.model_copy(update={"last_bundle_seconds": 0.0, "index": "IVF4096,SQfp16"})
    ends = ((signal.SIGKILL, LARGE), (signal.SIGKILL, LARGE), (signal.SIGTERM, hurried))
    for life, (end, config) in enumerate(ends):
        notes = tmp_path / f"life{life}"
        process = started(killed, notes, follow=True, config=config)
        assert wait_until(lambda n=notes: b"is made beside the stream" in (n / "log").read_bytes(), process)  # type: ignore[misc]
        process.send_signal(end)
        assert process.wait(timeout=120) == (0 if end == signal.SIGTERM else -end), (notes / "log").read_text()
        assert log.current() is None
    assert "is left to the next run" in (notes / "log").read_text()
    notes = tmp_path / "last"
    process = started(killed, notes, follow=True, config=LARGE)
    assert wait_until(lambda: log.current() is not None, process), (notes / "log").read_text()
    commit_large(writers[1], 5000)
    assert wait_until(lambda: final(killed, LARGE).position.sequence == 4, process), (notes / "log").read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0, (notes / "log").read_text()
    commit_large(writers[0], 5000)
    assert started(whole, tmp_path / "unkilled", ranks=1, config=LARGE).wait(timeout=100) == 0
    assert same_tensors(final(whole, LARGE).tensors(), final(killed, LARGE).tensors()) == []
    assert verify(killed).findings == []
    assert log.manifests()[-1].trained_sequence == 3


def test_a_batch_that_the_ranks_cannot_share_ends_the_run_with_a_reason(tmp_path: Path) -> None:
    store, notes = Store(str(tmp_path / "store")), tmp_path / "notes"
    notes.mkdir()
    settings = TrainerConfig.model_validate({**CONFIG.model_dump(), "batch_size": 2}).model_dump_json()
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    command = [sys.executable, *launcher, str(WORKER), store.url, settings, str(notes), "bounded"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "batch_size = 2 leaves some of the 3 ranks without a row" in done.stderr
