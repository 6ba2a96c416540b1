"""Every command of every page runs as it stands, in order, and does what the page says.

It runs in a folder and a network of the page's own, on a log that is generated. `page_table.py` says what a page
presupposes, and which commands do not run here, and why.
"""

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import pytest

from tests.docs.blocks import PAGES, ROOT, Block, Command, blocks, commands, loose
from tests.docs.page_table import APART, BEHIND, LONG_PAGES, PAGES_OF, TYPES, Page
from tests.docs.shell import Ran, Shell, is_possible, shell

Value = TypeVar("Value")
needs_a_network = pytest.mark.skipif(not is_possible(), reason="the kernel gives no process a network (unshare, ip)")

_FILES: Final = ("S", "plays.jsonl", "items.jsonl")


def why_apart(step: Command | Block) -> str | None:
    if isinstance(step, Block):
        return None
    return next((why for pattern, why in APART.items() if re.fullmatch(pattern, step.plain)), None)


def steps(page: Path) -> Iterator[Command | Block]:
    """Return the commands of a page, its scripts and its settings, in order."""
    for block in blocks(page):
        settings = re.match(r"[^\n]*# in weir\.yaml\n(?:[^\n]+\n)*\n?", block.text)
        if settings:
            yield Block(block.page, block.line, "yaml", settings[0])
        if block.language in ("", "bash", "sh", "console"):
            yield from commands(block)
        elif block.language in ("python", "yaml"):
            yield block


STEPS: Final = {page: list(steps(page)) for page in PAGES}
RUN: Final = [
    page for page, found in STEPS.items() if any(isinstance(step, Command) and not why_apart(step) for step in found)
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small log with its catalogue, and of a store that was trained on it."""
    folder = tmp_path_factory.mktemp("prepared")
    event = '{{"event_id":"{0}{1}","user_id":"{0}","item_id":"jazz-blue-note-00{1}","timestamp":1767225609571}}'
    more = [event[:-2].format(user, item) + ',"event_type":"play"}' for user in ("ann", "bob") for item in range(3)]
    with shell(folder, {}) as run:
        for command in (
            "weir generate plays.jsonl --users 200 --items 200 --events 8000 --days 6 --catalogue items.jsonl",
            *(f"echo '{line}' >> plays.jsonl" for line in more),
            f"weir ingest --log plays.jsonl --store S --set pipeline.window_seconds=14400 {TYPES}",
            "weir train --store S",
        ):
            done = run.run(command)
            assert done.status == 0, done
    return folder / "page"


@needs_a_network
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands(page: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if page.stem in LONG_PAGES:
        pytest.skip("takes long, and other tests run its parts: WEIR_CAMPAIGN=long")
    about = PAGES_OF.get(page.stem, Page())
    with shell(tmp_path, about.environment) as run:
        if about.store:
            prepared = request.getfixturevalue("prepared")
            for source in (prepared / name for name in _FILES):
                (shutil.copytree if source.is_dir() else shutil.copy)(source, run.folder / source.name)
        given = run.run(f"( set -e\n{about.given}\n)")
        assert given.status == 0, given
        for command in about.first:
            take(run, Command("before the page", 0, command), about)
        for step in STEPS[page]:
            if isinstance(step, Block):
                use(run, step, about)
            elif not why_apart(step):
                take(run, step, about)
        for command in reversed(list(run.behind)):
            ended = run.stop(command)
            assert ended.status in (0, 130), ended


def use(run: Shell, block: Block, about: Page) -> None:
    """Write settings down, and run a script where the page's are meant to run."""
    if block.language == "yaml":
        (run.folder / "weir.yaml").write_text(block.text)
    elif about.scripts and ">>>" not in block.text:
        take(run, Command(block.page, block.line, f"python - <<'END'\n{block.text}END"), about)


def take(run: Shell, step: Command, about: Page) -> None:
    """Run a command of a page, and see that what the page says of it is so."""
    text = step.text
    for word, meaning in about.words.items():
        text = text.replace(word, meaning)
    if step.plain in {Command("", 0, other).plain for other in run.behind}:
        return  # the page names it again; it runs
    for other in list(run.behind):
        servers = ("weir up", "weir serve")  # each listens on the same port
        is_in_the_way = text.startswith(servers) and any(server in other for server in servers)
        if other.split()[:2] == text.split()[:2] or is_in_the_way:
            run.stop(other)
    ready = next((ready for pattern, ready in BEHIND.items() if re.fullmatch(pattern, step.plain)), None)
    done = run.run(text) if ready is None else run.start(text, ready)
    check(run, step, done, about)


def check(run: Shell, step: Command, done: Ran, about: Page) -> None:
    """See that a command has ended as it should, and printed and changed what the page says."""
    where, printed = f"{step.page}:{step.line}: {done}", done.out + done.err
    assert done.status == _of(about.statuses, step, 0), where
    wanted = _of(about.says, step, None)
    for pattern in map(loose, step.shown) if wanted is None else (wanted,):
        assert re.search(pattern, printed, flags=re.DOTALL), f"{where}\nnot printed: {pattern}"
    for command, effect in _of(about.after, step, ()):
        more = run.run(command)
        assert re.search(effect, more.out + more.err, flags=re.DOTALL), f"{where}\n{more}\nnot printed: {effect}"


def _of(table: Mapping[str, Value], step: Command, otherwise: Value) -> Value:
    return next((value for start, value in table.items() if step.plain.startswith(start)), otherwise)


@pytest.mark.parametrize("pattern", APART)
def test_what_does_not_run_is_on_a_page(pattern: str) -> None:
    found = [step for steps in STEPS.values() for step in steps if isinstance(step, Command)]
    meant = [step for step in found if re.fullmatch(pattern, step.plain)]
    assert meant
    pytest.skip(f"{len(meant)} commands do not run, such as {meant[0].page}:{meant[0].line}: {APART[pattern]}")


def test_the_table_names_pages() -> None:
    assert {*PAGES_OF, *LONG_PAGES} <= {page.stem for page in RUN}
