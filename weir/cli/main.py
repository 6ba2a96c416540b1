"""The command ``weir``.

No stage is imported before a command runs: help appears at once, and a missing extra concerns only the commands that
need it.
"""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from weir.cli import ask, bench, change_store, data, evaluate, settings, stages, store
from weir.cli.inspect import inspect
from weir.cli.terminal.command import command, leave_out_noise
from weir.runtime.parent import follow_parent

__all__ = ["app", "main"]

app = typer.Typer(
    name="weir",
    help="A streaming retrieval trainer: from an interaction log to top-k items over gRPC, Recall@k in Prometheus.",
    epilog="Settings come from the command line, WEIR_... variables, the --config file, the defaults: the first wins.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)

_INSPECT = "Inspect"
_EVALUATE = "Evaluate"
_LOGS = "Sample logs"
_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run everything": (stages.up,),
    "Your own log": (settings.check, settings.init),
    "Query": (ask.query, ask.click),
    "Run one stage": (
        stages.ingest,
        stages.retry,
        stages.stream,
        stages.train,
        stages.export,
        store.promote,
        stages.serve,
        stages.histories,
        stages.monitor,
    ),
    _INSPECT: (store.verify,),
    "Maintain a store": (
        change_store.retire,
        change_store.forget,
        change_store.rebuild,
        settings.settings,
        store.replay_bundle,
    ),
    _LOGS: (data.generate, data.produce, data.replay),
    _EVALUATE: (evaluate.evaluate,),
}

for _panel, _functions in _PANELS.items():
    for _function in _functions:
        app.command(_function.__name__.replace("_", "-"), rich_help_panel=_panel)(command(_function))
app.command("train-worker", hidden=True)(command(stages.train_worker))
app.command("replay-worker", hidden=True)(command(store.replay_worker))
app.add_typer(data.app, name="data", rich_help_panel=_LOGS)
app.add_typer(bench.app, name="bench", rich_help_panel=_EVALUATE)
app.add_typer(inspect.app, name="inspect", rich_help_panel=_INSPECT)
app.add_typer(settings.app, name="config", rich_help_panel=_INSPECT)


def _version(value: bool) -> None:
    if value:
        from weir.contracts.storage.format import software_version  # noqa: PLC0415 - rarely needed

        typer.echo(f"weir {software_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _keep_to_this_weir() -> None:
    """Make every child process import this weir, not a `weir` package in its working folder.

    Stages, ranks, the tower's tracing and Beam's workers start with ``python -m``, which searches the working folder
    first. A checkout that is not installed must be found there, so the working folder stays searched then.
    """
    if not Path().samefile(Path(__file__).parents[2]):
        os.environ["PYTHONSAFEPATH"] = "1"


def _write_any_text() -> None:
    """Let output have ids of any language under every locale: UTF-8 into pipes and files, escapes on a terminal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")


def main() -> None:
    """Run the command line of this process."""
    _write_any_text()
    _keep_to_this_weir()
    follow_parent()
    leave_out_noise()
    app()
