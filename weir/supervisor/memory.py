"""How much memory the children and all that they started take together (Linux)."""

from pathlib import Path

__all__ = ["Peak", "tree_memory"]


class Peak:
    """The largest of the values seen."""

    def __init__(self) -> None:
        self.bytes = 0

    def see(self, value: int) -> None:
        """Take in a value."""
        self.bytes = max(self.bytes, value)


def tree_memory(root: int, proc: Path = Path("/proc")) -> int:
    """Return the bytes that a process and its descendants take; 0 where /proc does not tell.

    Proportional sets: a page that several processes share is counted once.
    """
    children: dict[int, list[int]] = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            # It has ended between the listing and the look.
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, frontier = [root], [root]
    while frontier:
        frontier = [child for process in frontier for child in children.get(process, ())]
        found += frontier
    return sum(_proportional_set(proc / str(process)) for process in found)


def _proportional_set(folder: Path) -> int:
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
