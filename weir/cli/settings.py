"""``weir config``: the effective settings; ``weir settings``: the settings recorded in a store."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from weir.cli.command import command
from weir.cli.options import JsonOutput, StoreOptions
from weir.errors import CommandError, UsageError
from weir.session import Session, open_session
from weir.text import plain

if TYPE_CHECKING:
    from pydantic import JsonValue

    from weir.contracts.format import SettingsChange

__all__ = ["app", "settings"]

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


def settings(*, options: StoreOptions, json: JsonOutput = False) -> None:
    """Show the settings that all stages of a store share; with --set change them, and say from which window on.

    End the pipeline first. A mapping that --set gives as a whole replaces the one before: --set
    "pipeline.event_types={play: positive}"; --set pipeline.event_types.skip=negative adds to it. Start running stages
    again: each takes its settings at its start.
    """
    session = open_session(options.config, options.store, None, recorded={})
    from weir.contracts.format import read_format, read_settings
    from weir.pipelines.lasting import recorded
    from weir.pipelines.settings_change import change

    if read_format(session.store) is None:
        raise CommandError(f"{session.store.path('')}: there is no such store; its first pipeline records the settings")
    if options.assign:
        wanted = _wanted(options.assign, recorded(session.store, may_be_lost=True))
        _tell_change(session, change(session.store, wanted), json=json)
        return
    values, kept = recorded(session.store), read_settings(session.store)
    changes = [] if kept is None else [one.model_dump(mode="json") for one in kept.changes]
    if json:
        session.print_json({"values": values, "changes": changes})
        return
    from weir.pipelines.lasting import spelled

    for name, value in values.items():
        session.out.print(plain(f"{name} = {spelled(value)}"), soft_wrap=True)
    for one in () if kept is None else kept.changes:
        session.out.print(plain(_in_words(one)), soft_wrap=True)


def _tell_change(session: Session, made: "SettingsChange | None", *, json: bool) -> None:
    if json:
        session.print_json({} if made is None else made.model_dump(mode="json"))
    elif made is None:
        session.out.print(plain("nothing to change: the store has these settings"))
    else:
        session.out.print(plain(f"{_in_words(made)}; start the running stages again"), soft_wrap=True)


def _in_words(made: "SettingsChange") -> str:
    from weir.pipelines.lasting import OUTSIDE_PIPELINE, spelled

    one = "; ".join(
        f"{name} was {spelled(made.before[name]) if name in made.before else 'not recorded'}, is {spelled(value)}"
        for name, value in made.after.items()
    )
    if all(name in OUTSIDE_PIPELINE for name in made.after):
        return one
    start = None if made.from_ms is None else datetime.fromtimestamp(made.from_ms / 1000, UTC).isoformat()
    whole = "" if start is None else f", so windows that start at {start} or later are whole under it"
    return f"{one}; holds from commit {made.commit} on{whole}"


def _wanted(assign: list[str], known: "dict[str, JsonValue]") -> "dict[str, JsonValue]":
    """Return the new values of the settings that are assigned, by name; raises `UsageError` and `SettingsError`."""
    from weir.config import Given, Settings, assignments, effective, located
    from weir.pipelines.lasting import LASTING, values_of
    from weir.spelling import annotation_at

    overrides, malformed = assignments(assign)
    paths = {pair.partition("=")[0].strip() for pair in assign}
    of = {path: name for path in paths for name in LASTING if path == name or path.startswith(f"{name}.")}
    base: dict[str, Any] = {"pipeline": {}}
    for name, value in known.items():
        section, _, key = name.rpartition(".")
        if name not in paths or get_origin(annotation_at(Settings, name.split("."))) is not dict:
            (base[section] if section else base)[key] = value
    found = effective(Given((("command line", overrides),), tuple(malformed)), base)
    if others := paths - of.keys():
        raise UsageError(f"{min(others)}: each process has its own; a store records: {', '.join(LASTING)}")
    ours = values_of(found.pipeline) | located(found)
    return {name: ours.get(name) for name in of.values()}
