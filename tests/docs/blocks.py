"""The code of a page, in order: commands with what the page shows of their output, scripts, settings, and text."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["PAGES", "ROOT", "Block", "Command", "blocks", "commands", "loose"]

ROOT: Final = Path(__file__).parents[2]
LAB: Final = ROOT / "docs" / "lab"
PAGES: Final = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if LAB not in page.parents),
]
"""All but the lab: an entry of it names commands as they were at its commit."""

_PROGRAMS: Final = (
    *("aws", "cat", "curl", "docker", "echo", "file=weir", "git", "go", "grep", "grpcurl", "head", "kind", "kubectl"),
    *("make", "mkdir", "npm", "openssl", "pip", "prometheus", "protoc", "pytest", "python", "rm", "uv", "uvx"),
    *("weir", ".venv/bin/weir"),
)
_START: Final = re.compile(rf"(?:[A-Z_]+=\S* )*(?:{'|'.join(map(re.escape, _PROGRAMS))}|for \w+ in)(?:[ /\n]|$)")
_FENCE: Final = re.compile(r"^( *)```(\w*)$")


@dataclass
class Command:
    """A command as the page has it, its comment included, and the lines that the page shows as its output."""

    page: str
    line: int
    text: str
    shown: list[str] = field(default_factory=list)

    @property
    def plain(self) -> str:
        """The command on one line, without comment and without the folder of its program."""
        one = re.sub(r"\\\n\s*", "", self.text)
        return " ".join(re.sub(r"\s+#\s.*", "", one).removeprefix(".venv/bin/").split())


@dataclass(frozen=True)
class Block:
    """A block of code: its page and first line, its language (empty if none is given), its text without indent."""

    page: str
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, fenced or indented, in order."""
    name, found = page.relative_to(ROOT).as_posix(), list[Block]()
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        start, fence = at, _FENCE.match(lines[at])
        if fence:
            language, at = fence[2], at + 1
            while lines[at].strip() != "```":
                at += 1
            found.append(_block(name, start + 2, language, lines[start + 1 : at]))
        elif re.match(r" {4,}\S", lines[at]) and not lines[at - 1].strip():
            while at < len(lines) and (not lines[at].strip() or lines[at].startswith("    ")):
                at += 1
            found.append(_block(name, start + 1, "", lines[start:at]))
            continue
        at += 1
    return found


def commands(block: Block) -> list[Command]:
    """Return the commands of a block: lines after a prompt or, without prompts, lines that start with a program."""
    prompted, found = re.search(r"^\$ ", block.text, flags=re.M) is not None, list[Command]()
    open_command = False
    for number, line in enumerate(block.text.splitlines()):
        if open_command:
            found[-1].text += "\n" + line
        elif line.startswith("$ ") if prompted else _START.match(line) and " ---- " not in line:
            found.append(Command(block.page, block.line + number, line.removeprefix("$ ")))
        elif found and line.strip() and not line.startswith("#"):
            found[-1].shown.append(line)
        else:
            continue
        open_command = not found[-1].shown and _goes_on(found[-1].text)
    return found


def loose(line: str) -> str:
    """Return a pattern for a line of output: figures, blanks and what `...` leaves out may differ."""
    number = r"[-+]?\d[\d,.:]*"
    parts = (re.escape(part) for part in re.split(number, " ".join(line.split())))
    return number.join(parts).replace(r"\ ", r"\s+").replace("MiB", "[KM]iB").replace(r"\.\.\.", ".*")


def _block(page: str, line: int, language: str, lines: list[str]) -> Block:
    indent = min((len(one) - len(one.lstrip()) for one in lines if one.strip()), default=0)
    return Block(page, line, language, "\n".join(one[indent:] for one in lines).rstrip() + "\n")


def _goes_on(text: str) -> bool:
    """Return whether a command goes on in the next line."""
    if text.endswith("\\") or (text.startswith("for ") and not text.endswith("done")):
        return True
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return True
    return not words
