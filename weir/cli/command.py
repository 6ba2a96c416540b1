"""What makes a function a command of weir: options in groups, ``--debug``, and errors as exit statuses."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Annotated, Any, Final

import typer

from weir.cli.errors import explain
from weir.text import visible

__all__ = ["DEBUGGING", "command"]

DEBUGGING: Final = ContextVar("DEBUGGING", default=False)
"""Whether ``--debug`` was given."""

_DEBUG: Final = inspect.Parameter(
    "debug",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--debug", help="Show tracebacks and log at DEBUG level.")],
)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return what typer registers: a parameter whose type is a dataclass becomes one option per field.

    Errors that a user can act on end the command with a line and an exit status; others keep their traceback.
    """
    parameters = inspect.signature(function).parameters
    groups: dict[str, Any] = {
        name: each.annotation for name, each in parameters.items() if is_dataclass(each.annotation)
    }

    @functools.wraps(function)
    def run(*, debug: bool = False, **options: Any) -> None:
        for name, group in groups.items():
            options[name] = group(**{field.name: options.pop(field.name) for field in fields(group)})
        DEBUGGING.set(debug)
        with _explained(debug=debug):
            function(**options)

    # typer reads the options from here, by `inspect.signature`.
    signature = inspect.Signature([*chain.from_iterable(map(_spread, parameters.values())), _DEBUG])
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


@contextmanager
def _explained(*, debug: bool) -> Iterator[None]:
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:
        if debug or (explanation := explain(error)) is None:
            raise
        lines, status = explanation
        sys.stderr.write("weir: " + "\n".join(map(visible, lines)) + "\n")
        raise typer.Exit(status) from None


def _spread(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    grouped = is_dataclass(parameter.annotation)
    for each in inspect.signature(parameter.annotation).parameters.values() if grouped else [parameter]:
        yield each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
