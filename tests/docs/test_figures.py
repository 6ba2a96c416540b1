"""Every table of measured figures names the command that prints it, and every command that a page names exists.

The lab is exempt: an entry names the command as it was, at the commit that it names.
"""

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Final

import pytest
import typer

from benchmarks.change import SAVED, by_part, print_table
from weir.cli.main import app

ROOT = Path(__file__).parents[2]
LAB = ROOT / "docs" / "lab"
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if LAB not in page.parents),
]
ENTRIES = [
    pytest.param(page, entry, id=f"{page.stem}: {entry.splitlines()[0]}")
    for page in sorted(LAB.glob("*.md"))
    for entry in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]
    if page.name != "index.md"
]
STARTS: Final = ("python -m", "make", "weir", "pytest")
FIGURE: Final = re.compile(r"\|\s*[-+<]?\d*\.\d+")
"""A cell that holds a number with a fraction: nobody sets such a number, somebody measured it."""
ELSEWHERE: Final = "](#where-the-figures-come-from)"
"""A page may have one table of commands for all of its sections."""


def commands(text: str) -> list[list[str]]:
    """Return the words of all commands in the code of a text, without what is set or prompted before them."""
    fences = re.findall(r"^```.*?\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", rest)]
    blocks = re.findall(r"^ {4,}(.+)$", rest, flags=re.MULTILINE)
    code = [*spans, *blocks, *(line for fence in fences for line in fence.splitlines())]
    lines = [part.strip() for one in code for part in re.split(r"&&|\s#\s|\||\s(?:--|exec weir)\s(?=weir )", one)]
    plain = [re.sub(r"^(?:\$ )?(?:\w+=\S*\s+)*(?:\.venv/bin/)?", "", line) for line in lines]
    return [_words(line) for line in plain if line.startswith(tuple(f"{start} " for start in STARTS))]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote that goes on in the next line
        return line.split()


def problem(words: list[str]) -> str | None:
    """Return what is wrong with a command that a page names."""
    if words[:2] == ["python", "-m"]:
        is_there = importlib.util.find_spec(words[2]) is not None
    elif words[0] == "make":
        is_there = re.search(rf"^{re.escape(words[1])}:", (ROOT / "Makefile").read_text(), re.MULTILINE) is not None
    elif words[0] == "pytest":
        paths = [word.split("::")[0] for word in words[1:] if word.startswith("tests/")]
        is_there = all((ROOT / path).exists() for path in paths)
    else:
        is_there = not words[1].isalpha() or words[1].isupper() or words[2:3] == ["----"] or _is_known(words[1:])
    return None if is_there else " ".join(words)


def _is_known(words: list[str]) -> bool:
    """Return whether a command of weir exists, and has the options that are given."""
    command, rest = typer.main.get_command(app), words
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = getattr(command, "commands")[rest[0]], rest[1:]  # noqa: B009 - a group has them, a command not
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "--debug"}
    given = {word.split("=")[0] for word in rest if word.startswith("--")}
    names_a_group = hasattr(command, "commands") and bool(rest)
    return rest != words and not names_a_group and given <= known


def sections(page: Path) -> list[str]:
    """Return the sections of a page, each with the introductions of those that it belongs to."""
    found: list[str] = []
    above: dict[int, str] = {}
    for part in re.split(r"^(?=#+ )", page.read_text(), flags=re.MULTILINE):
        level = len(part) - len(part.lstrip("#"))
        above = {depth: text for depth, text in above.items() if depth < level} | {level: part}
        found.append("".join(above.values()))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    assert [wrong for words in commands(page.read_text()) if (wrong := problem(words))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_table_of_figures_names_what_prints_it(page: Path) -> None:
    silent = [
        section.rsplit("\n#", 1)[-1].splitlines()[0]
        for section in sections(page)
        if len(FIGURE.findall(section)) > 3 and not commands(section) and ELSEWHERE not in section
    ]
    assert silent == []


@pytest.mark.parametrize(("page", "entry"), ENTRIES)
def test_an_entry_of_the_lab_has_a_date_and_a_commit(page: Path, entry: str) -> None:
    assert re.search(r"\b20\d\d-\d\d-\d\d\b", entry), f"{page.name}: no date"
    assert re.search(r"`[0-9a-f]{8,40}`", entry), f"{page.name}: no commit"


def test_the_table_of_what_changes_cost_is_what_was_saved(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(by_part(ROOT / SAVED))
    assert capsys.readouterr().out in (LAB / "sizing.md").read_text()
