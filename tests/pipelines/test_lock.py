import subprocess
import sys
from pathlib import Path

import pytest

from weir.contracts import Store
from weir.pipelines.lock import BusyStoreError, only_driver, only_writer

HOLD = """
import sys
from weir.contracts import Store
from weir.pipelines.lock import only_writer
with only_writer(Store(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_pipeline_is_refused_until_the_first_has_died(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BusyStoreError, match=r"ingest\.lock"), only_writer(store):
            pass
        other.kill()
        other.wait()
    with only_writer(store):
        pass
    with only_writer(store):
        pass


def test_errors_of_the_holder_pass_through(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), only_writer(Store(str(tmp_path))):
        raise BlockingIOError


def test_object_stores_are_not_locked() -> None:
    with only_writer(Store("memory://lock")), only_writer(Store("memory://lock")):
        pass


def test_a_driver_leaves_the_writing_to_its_workers(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with only_driver(store):
        with only_writer(store):
            pass
        with (
            pytest.raises(BusyStoreError, match=r"another pipeline drives this store .*driver\.lock"),
            only_driver(store),
        ):
            pass
