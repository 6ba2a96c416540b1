"""The two paths of docs/architecture.md are short, and every file and name in them exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PATHS = ["From a log line to an answer", "From a loss choice to its gradient"]
MOST_STOPS = 8
DATA = {"event_id"}
"""Names of data, not of code."""


def _stops(title: str) -> list[str]:
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.split(r"^\d+\. ", section, flags=re.MULTILINE)[1:]


def _defined(file: Path) -> set[str]:
    """Return the classes, functions and constants of a file."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


@pytest.mark.parametrize("title", PATHS)
def test_a_path_is_short(title: str) -> None:
    assert 1 < len(_stops(title)) <= MOST_STOPS


@pytest.mark.parametrize(("title", "number"), [(title, at) for title in PATHS for at in range(len(_stops(title)))])
def test_a_stop_names_what_exists(title: str, number: int) -> None:
    quoted = re.findall(r"`([^`]+)`", _stops(title)[number])
    files = [ROOT / word for word in quoted if word.endswith(".py")]
    assert files
    assert all(file.is_file() for file in files), files
    defined = set().union(*(_defined(file) for file in files))
    names = [word for word in quoted if word.isidentifier() and word not in DATA]
    assert names
    assert set(names) <= defined


def test_the_rooms_of_the_trainer_are_all_there() -> None:
    assert set(_rooms()) == {folder.parent.name for folder in (ROOT / "trainer").glob("*/__init__.py")}


def test_a_room_imports_what_the_page_says_and_only_from_below() -> None:
    rooms = _rooms()
    order = list(rooms)
    for room, allowed in rooms.items():
        assert _imports(room) - {room} == allowed, room
        assert allowed <= set(order[order.index(room) + 1 :]), room


def _rooms() -> dict[str, set[str]]:
    """Return the table of the trainer's rooms: what each imports, in the order of the page."""
    section = PAGE.split("\n### Inside `trainer/`\n")[1].split("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)/` \|.*\|([^|]*)\|$", section, flags=re.MULTILINE)
    return {room: set(re.findall(r"`(\w+)`", imports)) for room, imports in rows}


def _imports(room: str) -> set[str]:
    """Return the rooms of the trainer that any file of a room imports."""
    found = set()
    for file in (ROOT / "trainer" / room).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "weir.trainer":
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("weir.trainer."):
                found.add(str(node.module).split(".")[2])
    return found
