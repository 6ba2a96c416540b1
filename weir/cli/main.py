"""The command ``weir``.

Nothing of the stages is imported before a command runs: help comes at once, and a missing extra is only missed
where it is needed.
"""

from typing import Annotated

import typer

from weir.cli import ask, bench, data, evaluate, inspect, promote, settings, stages, store, up
from weir.cli.errors import guarded
from weir.supervisor.parent import follow_parent

__all__ = ["app", "main"]

app = typer.Typer(
    name="weir",
    help="A streaming retrieval trainer: from an interaction log to top-k items over gRPC, Recall@k in Prometheus.",
    epilog="Settings come from the command line, WEIR_... variables, --config and the defaults, in this order.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)

_EVERYTHING = "Everything at once"
_ASK = "Ask and act"
_STAGES = "One stage"
_LOOK = "Look"
_STORE = "Keep a store"
_LOGS = "Logs to play with"
_MEASURE = "Compare"

app.command("up", rich_help_panel=_EVERYTHING)(guarded(up.up))
app.command("query", rich_help_panel=_ASK)(guarded(ask.query))
app.command("click", rich_help_panel=_ASK)(guarded(ask.click))
app.command("ingest", rich_help_panel=_STAGES)(guarded(stages.ingest))
app.command("train", rich_help_panel=_STAGES)(guarded(stages.train))
app.command("train-worker", hidden=True)(guarded(stages.train_worker))
app.command("export", rich_help_panel=_STAGES)(guarded(stages.export))
app.command("promote", rich_help_panel=_STAGES)(guarded(promote.promote))
app.command("serve", rich_help_panel=_STAGES)(guarded(stages.serve))
app.command("monitor", rich_help_panel=_STAGES)(guarded(stages.monitor))
app.command("verify", rich_help_panel=_LOOK)(guarded(store.verify))
app.command("migrate", rich_help_panel=_STORE)(guarded(store.migrate))
app.command("generate", rich_help_panel=_LOGS)(guarded(data.generate))
app.command("replay", rich_help_panel=_LOGS)(guarded(data.replay))
app.command("evaluate", rich_help_panel=_MEASURE)(guarded(evaluate.evaluate))
app.add_typer(bench.app, name="bench", rich_help_panel=_MEASURE)
app.add_typer(inspect.app, name="inspect", rich_help_panel=_LOOK)
app.add_typer(settings.app, name="config", rich_help_panel=_LOOK)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version  # noqa: PLC0415 - seldom wanted

        typer.echo(f"weir {version('weir')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line of this process."""
    follow_parent()
    app()
