"""``weir config``: the effective settings."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from pathlib import Path
from typing import Annotated

import typer

from weir.cli.command import command
from weir.cli.options import JsonOutput, StoreOptions
from weir.session import open_session

__all__ = ["app"]

app = typer.Typer(
    help="Show or check the effective settings, from file, environment and command line.", no_args_is_help=True
)


@app.command("show")
@command
def show(
    *,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Print the effective settings as YAML that --config reads, each with its description."""
    session = options.open()
    if json:
        session.print_json(session.settings)
        return
    from weir.cli.yaml_text import commented

    typer.echo(commented(session.settings), nl=False)


@app.command("check")
@command
def check(
    *,
    file: Annotated[
        Path | None,
        typer.Argument(help="YAML file of settings; checked without reading its store.", show_default="none"),
    ] = None,
    options: StoreOptions,
) -> None:
    """Check the settings; name every one that cannot be used, and exit with status 2 if there is any."""
    open_session(file or options.config, options.store, options.assign, base=None if file is None else {})
    typer.echo("the settings can be used")


@app.command("schema")
@command
def schema() -> None:
    """Print the JSON Schema of the settings file, with which editors complete and check it."""
    from weir.schema import schema_text

    typer.echo(schema_text(), nl=False)
