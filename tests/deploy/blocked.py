"""Runs a command line of weir with only the modules that some extras bring: `python blocked.py EXTRAS COMMAND...`.

What an image of these extras would hold is worked out from the metadata of what is installed here; every other module
is as good as missing.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from types import ModuleType

from packaging.requirements import Requirement

OURS = {"weir"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(extras: Iterable[str]) -> set[str]:
    """Return the distributions that ``weir-retrieval[extras]`` needs, itself included."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [("weir-retrieval", extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue
        found.add(normal(name))
        for needed in map(Requirement, lines):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(needed.name, inner) for inner in ("", *needed.extras)]
    return found


class Installed(PathFinder):
    """Finds what the path holds, but for the modules of other distributions."""

    missing: frozenset[str] = frozenset()

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] in cls.missing else super().find_spec(fullname, path, target)


def block(allowed: set[str]) -> None:
    """Hide every module that none of the distributions `allowed` brings."""
    owners = packages_distributions()
    others = {module for module, names in owners.items() if not {normal(name) for name in names} & allowed}
    Installed.missing = frozenset(others - OURS)
    sys.meta_path[:] = [Installed if finder is PathFinder else finder for finder in sys.meta_path]


if __name__ == "__main__":
    extras, *arguments = sys.argv[1:]
    block(closure(extras.split(",")))
    sys.argv = ["weir", *arguments]
    from weir.cli.main import main

    main()
