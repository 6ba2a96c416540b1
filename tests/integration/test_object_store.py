"""A store on a real S3 server: commits are made once, and followers in other processes see them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contracts.panes import race
from tests.integration.object_store import bucket
from tests.pipelines import support
from tests.pipelines.support import Event
from tests.serving.process import MonitorProcess, ServerProcess
from weir.contracts import BundleLog, CommitLog, Store, WindowLog, check_fitness
from weir.contracts.verification import verify
from weir.serving.client import RetrievalClient, by_user


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with bucket(tmp_path_factory.mktemp("minio") / "data") as url:
        yield url


@pytest.fixture
def store(s3: str, request: pytest.FixtureRequest) -> Store:
    return Store(f"{s3}/{request.node.name.partition('[')[0]}")


def test_the_server_qualifies_by_races_of_two_writers(store: Store) -> None:
    check_fitness(store, races=20)


def test_two_writers_make_each_commit_once(store: Store) -> None:
    made = race(store.url, writers=2, commits=15)
    assert sorted(number for number, _ in made) == list(range(15))
    assert all(CommitLog(store).get(number).writer == name for number, name in made)


def test_a_follower_sees_what_another_process_commits(store: Store) -> None:
    """The follower has looked before, so that a cached listing would hide the commit from it."""
    log = WindowLog(store)
    assert log.committed() == []
    for number in range(3):
        code = (
            "import sys; from weir.contracts import Store, WindowLog; from tests.contracts.panes import a_pane; "
            f"WindowLog(Store({store.url!r})).commit(a_pane({number}))"
        )
        subprocess.run([sys.executable, "-c", code], check=True, env=os.environ, cwd=Path(__file__).parents[2])
        until = time.monotonic() + 10
        while not (found := log.committed(after=number - 1)):
            assert time.monotonic() < until, "the follower does not see the commit"
        assert [pane.sequence for pane in found] == [number]


PIPELINE = """
import sys, threading
from weir.contracts import Store
from weir.pipelines.batch.ingest import ingest
from tests.pipelines import support
from pathlib import Path
settings = support.config(Path(sys.argv[2]), event_types={}, poll_seconds=0.1, idle_seconds=0.3)
ingest(Store(sys.argv[1]), settings, follow=True)
"""
TRAINER = """
import sys
from weir.contracts import Store
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.train import train
tower = {"dimension": 8, "history_length": 3}
settings = {"tower": tower, "batch_size": 16, "metrics_port": 0, "poll_seconds": 0.1, "admit_after": 1}
train(Store(sys.argv[1]), TrainerConfig.model_validate(settings), follow=True)
"""


@contextmanager
def running(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, cwd=Path(__file__).parents[2])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(what: str, is_there: Callable[[], bool], process: subprocess.Popen[bytes], within: float = 120) -> None:
    until = time.monotonic() + within
    while not is_there():
        assert process.poll() is None, f"the process ended with {process.returncode} before {what}"
        assert time.monotonic() < until, f"no {what} within {within} s"
        time.sleep(0.2)


def test_every_follower_sees_on_s3_what_others_commit(store: Store, tmp_path: Path) -> None:
    """Pipeline, trainer, server and monitor are processes of their own that meet in the bucket and nowhere else."""
    lines = [Event(f"user-{n % 7}", f"item-{n % 5}", n // 4).line() for n in range(200)]
    bundles = BundleLog(store)
    with (
        running(PIPELINE, store.url, str(tmp_path)) as pipeline,
        running(TRAINER, store.url) as trainer,
        ServerProcess(store, cache_dir=str(tmp_path / "cache")) as server,
        MonitorProcess(store, target=server.target, k=(1, 3)) as monitor,
    ):
        support.write_lines(tmp_path / "log/a.jsonl", lines)
        wait_for("first commit", lambda: bool(WindowLog(store).committed()), pipeline)
        wait_for("first bundle", lambda: bundles.current() is not None, trainer)
        server.said("ready", within=60)
        first = bundles.current()
        later = [Event(f"user-{n % 7}", f"item-{n % 6}", 60 + n // 4).line() for n in range(200)]
        support.write_lines(tmp_path / "log/b.jsonl", later)
        wait_for("second bundle", lambda: bundles.current() != first, trainer)
        server.serving(bundles.current() or "", within=60)
        newest = WindowLog(store).committed()[-1].sequence
        wait_for("last window measured", lambda: monitor.metric("weir_recall_sequence") >= newest, monitor.process)
        wait_for("histories", lambda: server.metric("weir_history_sequence") >= newest, server.process)
        with RetrievalClient(server.target) as client:
            [hits] = client.retrieve([by_user("user-1", 3)]).hits
            assert not hits.fallback
        assert server.metric("weir_history_missing_files") == 0
        assert list((tmp_path / "cache").glob("*.users"))
    assert verify(store).findings == []
