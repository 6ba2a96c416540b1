import os
import subprocess
import sys
import time

import pytest

from weir.up.memory import tree_memory

HOLD = "import sys; data = b'x' * (64 << 20); print('ready', flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of memory on Linux only")
def test_grandchildren_count() -> None:
    before = tree_memory(os.getpid())
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    grown = tree_memory(os.getpid()) - before
    process.communicate(timeout=30)
    assert 64 << 20 < grown < 256 << 20
    deadline = time.monotonic() + 10
    while tree_memory(os.getpid()) - before > 32 << 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert tree_memory(os.getpid()) - before < 32 << 20


def test_a_process_that_is_gone_takes_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert tree_memory(process.pid) == 0
