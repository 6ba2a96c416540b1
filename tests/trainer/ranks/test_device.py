"""Pages that the kernel has to fill, with and without what is tested."""

import platform
import subprocess
import sys

import pytest

STEPS = """
import ctypes, resource, sys
import numpy as np
from weir.trainer.ranks.device import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    return [np.ones(1 << 16) for _ in range(64)] and None

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: pages are small on every machine
if sys.argv[1] == "kept":
    keep_freed_memory()
step(), step()
before = faults()
step()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_a_step_gets_the_memory_of_the_one_before() -> None:
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", STEPS, how], check=True, stdout=subprocess.PIPE).stdout)
        for how in ("kept", "returned")
    )
    assert kept < 100
    assert returned > 1000
