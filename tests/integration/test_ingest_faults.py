"""`weir ingest` and `weir train` on a full disk, at a limit on files, and under signals."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import LogState, Store

EVENTS = 3000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "shop.jsonl"
    rows = (
        {"user_id": f"u{n * 7 % 100}", "item_id": f"i{n * 11 % 40}", "timestamp": 1_764_000_000 + 60 * n}
        for n in range(EVENTS)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[Path]:
    """A disk of a few KiB."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"needs to mount a tmpfs, which is not permitted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def weir(*arguments: str, before: Callable[[], object] | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "weir", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, preexec_fn=before)


def ingested(store: Path, log: Path, before: Callable[[], object] | None = None) -> subprocess.CompletedProcess[str]:
    settings = (f"pipeline.log={log}", "pipeline.window_seconds=14400", "pipeline.metrics_port=0")
    return weir("ingest", "--store", str(store), *(part for one in settings for part in ("--set", one)), before=before)


def trained(store: Path, before: Callable[[], object] | None = None) -> subprocess.CompletedProcess[str]:
    settings = ("trainer.metrics_port=0", "trainer.device=cpu", "trainer.tower.dimension=16")
    return weir("train", "--store", str(store), *(part for one in settings for part in ("--set", one)), before=before)


def check_line(ended: subprocess.CompletedProcess[str], folder: Path, step: str) -> None:
    told = [line for line in ended.stderr.splitlines() if line.startswith("weir: ")]
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(told) == 1
    assert told[0].startswith(f"weir: {folder}/")
    assert step in told[0]
    assert "run it again" in told[0]


@pytest.mark.parametrize("kib", [8, 24, 200])
def test_a_full_disk_ends_a_run_with_one_line_and_room_lets_it_end_as_it_should(
    kib: int, log: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", kib) as disk:
        check_line(ingested(disk / "store", log), disk, "free space")
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        again = ingested(disk / "store", log)
        assert again.returncode == 0, again.stderr
        assert LogState.open(Store(str(disk / "store"))).counts.events == EVENTS


def test_a_full_disk_ends_training_with_one_line(log: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16 << 10) as disk:
        ended = ingested(disk / "store", log)
        assert ended.returncode == 0, ended.stderr
        used = sum(-(-path.stat().st_size // 4096) * 4 for path in disk.rglob("*"))
        subprocess.run(["mount", "-o", f"remount,size={used + 100}k", str(disk)], check=True)
        check_line(trained(disk / "store"), disk, "free space")


def test_a_limit_on_files_is_told_as_such(log: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_240, 10_240))

    check_line(ingested(store, log, before=limit), store, "ulimit -f")
    again = ingested(store, log)
    assert again.returncode == 0, again.stderr
    assert LogState.open(Store(str(store))).counts.events == EVENTS


def test_a_worker_process_tells_its_error_as_text(log: Path, tmp_path: Path) -> None:
    options = "pipeline.runner_options=[--direct_running_mode=multi_processing, --direct_num_workers=2]"
    with small_disk(tmp_path / "disk", 200) as disk:
        settings = (f"pipeline.log={log}", "pipeline.window_seconds=14400", "pipeline.metrics_port=0", options)
        named = (part for one in settings for part in ("--set", one))
        ended = weir("ingest", "--store", str(disk / "store"), *named)
    # Beam's workers print records of their own, before the end.
    assert ended.stderr.splitlines()[-1].startswith(f"weir: {disk}/store/")
    assert ended.stderr.splitlines()[-1].endswith("No space left on device: free space and run it again")


FOLLOW = """
import logging, sys
from pathlib import Path
from weir.contracts import Store
from weir.pipelines.batch.ingest import ingest
from tests.pipelines import support
logging.basicConfig(level=logging.INFO, force=True)
folder = Path(sys.argv[1])
print(ingest(Store(str(folder / "store")), support.config(folder, idle_seconds=0.1), follow=True).valid)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_following_after_the_run(tmp_path: Path, number: signal.Signals) -> None:
    support.write_lines(tmp_path / "log/a.jsonl", [Event("u", "i", second).line() for second in range(30)])
    command = [sys.executable, "-c", FOLLOW, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        until, port = time.monotonic() + 60, None
        while port is None:
            assert time.monotonic() < until
            port = re.search(r"metrics on port (\d+)", process.stderr.readline())
        metrics = ""
        while 'weir_pipeline_events_total{label="positive"} 30.0' not in metrics:
            assert time.monotonic() < until, metrics
            time.sleep(0.1)
            metrics = urllib.request.urlopen(f"http://localhost:{port[1]}/metrics").read().decode()
        process.send_signal(number)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert output == "30\n"
    assert "Traceback" not in errors
    assert sum(manifest.counts.events for manifest in support.committed(Store(str(tmp_path / "store")))) == 30
