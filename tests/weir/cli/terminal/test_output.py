from io import StringIO

import pytest
from rich.console import Console

from weir.cli.terminal.output import Bar


def shown(*, terminal: bool, plain_seconds: float | None) -> str:
    console = Console(file=StringIO(), force_terminal=terminal, width=60)
    with Bar(console, "bake", plain_seconds=plain_seconds) as bar:
        for done in (1, 2):
            bar.show(done, 2, f"{done} of 2 [b]loaves[/b]")
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("plain_seconds", "lines"),
    [(0, ["bake: 1 of 2 [b]loaves[/b]", "bake: 2 of 2 [b]loaves[/b]"]), (1e6, []), (None, [])],
)
def test_without_a_terminal_there_are_lines_now_and_then(plain_seconds: float | None, lines: list[str]) -> None:
    assert shown(terminal=False, plain_seconds=plain_seconds).splitlines() == lines


def test_on_a_terminal_there_is_a_bar_and_no_line() -> None:
    text = shown(terminal=True, plain_seconds=0)
    assert "2 of 2 [b]loaves[/b]" in text
    assert "bake: " not in text
