import os
from pathlib import Path

import pytest

from weir.serving.bundles.loading import Memory

GIB = 1 << 30
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def root(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, MACHINE),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{GIB}\n"}, GIB),
        ({"proc/self/cgroup": "0::/pods/one\n", "sys/fs/cgroup/pods/memory.max": f"{2 * GIB}\n"}, 2 * GIB),
        (
            {
                "proc/self/cgroup": "0::/pods/one\n",
                "sys/fs/cgroup/pods/memory.max": f"{GIB}\n",
                "sys/fs/cgroup/pods/one/memory.max": "max\n",
            },
            GIB,
        ),
        # Version 1, in a container: the path is the host's, and nothing is there.
        (
            {
                "proc/self/cgroup": "5:cpu:/docker/x\n4:memory:/docker/x\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}\n",
            },
            3 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            MACHINE,
        ),
    ],
)
def test_the_limit_is_the_lowest_of_the_groups_and_the_machine(
    tmp_path: Path, files: dict[str, str], limit: int
) -> None:
    assert Memory.found(root=root(tmp_path, files)).limit == limit


def test_a_wanted_limit_is_taken_and_the_process_itself_counts() -> None:
    memory = Memory.found(GIB)
    assert memory.limit == GIB
    assert memory.holds(GIB // 4, GIB // 4)
    assert not memory.holds(GIB // 2, GIB // 2)


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_processes_share_what_they_leave_each_other(processes: int) -> None:
    """What fits into the shared part fits beside all of them, where each alone has room for nothing in `alone`."""
    alone = max(size for size in range(0, GIB, 1 << 20) if not Memory(size).holds(0)) + (1 << 20)
    limit = 8 * GIB
    assert Memory(limit).shared_by(processes).holds(limit - processes * alone)
    assert not Memory(limit).shared_by(processes).holds(limit - processes * alone + 1)
