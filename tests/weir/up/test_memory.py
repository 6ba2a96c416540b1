import subprocess
import sys
from pathlib import Path

import pytest

from weir.up.memory import tree_memory

HOLD = "import sys; data = b'x' * (64 << 20); print('ready', flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of memory on Linux only")
def test_grandchildren_count() -> None:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    family, alone = tree_memory(process.pid), [tree_memory(int(child)) for child in children]
    process.communicate(timeout=30)
    assert len(alone) == 1
    assert 64 << 20 < alone[0] < family < 256 << 20
    assert tree_memory(process.pid) == 0


def test_a_process_that_is_gone_takes_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert tree_memory(process.pid) == 0
