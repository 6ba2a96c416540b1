"""``weir config``: which settings hold."""

# ruff: noqa: ARG001, PLC0415 - options are parameters; imports wait until a command runs

from pathlib import Path
from typing import Annotated

import typer

from weir.cli.errors import guarded
from weir.cli.options import Assign, ConfigFile, Debug, JsonOutput, StoreUrl
from weir.cli.session import open_session

__all__ = ["app"]

app = typer.Typer(
    help="Show or check the settings that hold, after file, environment and command line.", no_args_is_help=True
)


@app.command("show")
@guarded
def show(
    config: ConfigFile = None,
    store: StoreUrl = None,
    assign: Assign = None,
    json: JsonOutput = False,
    debug: Debug = False,
) -> None:
    """Print all settings that hold, as YAML that --config reads; what each means stands beside it."""
    session = open_session(config, store, assign)
    if json:
        session.print_json(session.settings)
        return
    from weir.cli.yaml_text import commented

    typer.echo(commented(session.settings), nl=False)


@app.command("check")
@guarded
def check(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="YAML file of settings, checked as it is: its store is not looked at.", show_default="none"
        ),
    ] = None,
    config: ConfigFile = None,
    store: StoreUrl = None,
    assign: Assign = None,
    debug: Debug = False,
) -> None:
    """Say whether the settings can be used; if not, name every one that cannot, and end with status 2."""
    open_session(file or config, store, assign, base=None if file is None else {})
    typer.echo("the settings can be used")


@app.command("schema")
@guarded
def schema(debug: Debug = False) -> None:
    """Print the JSON Schema of the file of settings: editors complete and check with it."""
    from weir.schema import schema_text

    typer.echo(schema_text(), nl=False)
