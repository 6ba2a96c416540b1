from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from weir.cli.command import DEBUGGING, command
from weir.errors import CommandError, UsageError

RUNNER = CliRunner()


@dataclass(frozen=True)
class Shared:
    """A group of options."""

    place: Annotated[str, typer.Option()]
    size: Annotated[int, typer.Option()] = 2


def app_of(seen: list[object], error: BaseException | None = None) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @command
    def run(name: str, *, shared: Shared, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        seen.append((name, shared, loud, DEBUGGING.get()))
        if error is not None:
            raise error

    return app


def test_a_group_becomes_options_and_arrives_as_one_object() -> None:
    seen: list[object] = []
    for arguments in (["a", "--place", "x"], ["b", "--place", "y", "--size", "7", "--loud", "--debug"]):
        assert RUNNER.invoke(app_of(seen), arguments).exit_code == 0
    assert seen == [("a", Shared("x", 2), False, False), ("b", Shared("y", 7), True, True)]


def test_options_without_a_default_are_required_and_defaults_are_shown() -> None:
    assert RUNNER.invoke(app_of([]), ["a"]).exit_code == 2
    shown = RUNNER.invoke(app_of([]), ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert "[default: 2]" in shown
    order = [shown.index(option) for option in ("--place", "--size", "--loud", "--debug")]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (CommandError("no\x1b[1m"), 1, "weir: no\\x1b[1m\n"),
        (UsageError("no"), 2, "weir: no\n"),
        (typer.Exit(7), 7, ""),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_exit_statuses(error: BaseException, status: int, line: str) -> None:
    result = RUNNER.invoke(app_of([], error), ["a", "--place", "x"])
    assert (result.exit_code, result.stderr) == (status, line)


@pytest.mark.parametrize(("error", "arguments"), [(RuntimeError("odd"), []), (CommandError("no"), ["--debug"])])
def test_other_errors_and_debugging_keep_the_traceback(error: Exception, arguments: list[str]) -> None:
    result = RUNNER.invoke(app_of([], error), ["a", "--place", "x", *arguments])
    assert result.exception is error
