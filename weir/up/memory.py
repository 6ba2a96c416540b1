"""Memory used by a process and all its descendants (Linux)."""

from pathlib import Path
from typing import Final

__all__ = ["tree_memory"]


_PROC: Final = Path("/proc")


def tree_memory(root: int) -> int:
    """Return the bytes used by a process and its descendants; 0 without /proc.

    Sums proportional set sizes, so that a page shared by several processes is counted once.
    """
    children: dict[int, list[int]] = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            # The process has ended since the listing.
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, frontier = [root], [root]
    while frontier:
        frontier = [child for process in frontier for child in children.get(process, ())]
        found += frontier
    return sum(_proportional_set(_PROC / str(process)) for process in found)


def _proportional_set(folder: Path) -> int:
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
