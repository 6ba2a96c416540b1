"""``weir check``, ``init``, ``config`` and ``settings``: check a log, and show or change settings."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_origin

import typer

from weir.cli.terminal.command import command, set_up_logging
from weir.cli.terminal.options import JsonOutput, StoreOptions, log_files
from weir.errors import CommandError, UsageError
from weir.session import Session, open_session
from weir.text import plain

if TYPE_CHECKING:
    from pydantic import JsonValue

    from weir.check.report import LogReport
    from weir.contracts.storage.format import SettingsChange

__all__ = ["app", "check", "init", "settings"]


# ruff: noqa: PLC0415 - imports wait until a command runs


Log = Annotated[
    str,
    typer.Argument(
        help="The log: file, folder or glob, path or URL; JSON Lines, Parquet, CSV, TSV; or kafka://host:port/topic."
    ),
]

_NEWEST: Final = 200_000
"""Number of newest messages of a topic to look at."""


def check(
    *,
    log: Log,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Check a sample of a log: its fields and faults, and the settings that fit; exit status 1 if no row is valid.

    The sample is pieces of the files from the first to the last, or the newest messages of a topic.
    """
    session = options.open({"pipeline.log": log}, is_binding=False)
    set_up_logging(session.notes)
    from weir.check.text import print_report

    report = _look(session)
    if json:
        session.print_json(report)
    else:
        print_report(session.out, report, session.given)
        if report.window_seconds:
            session.out.print(plain(_followed(session, report.window_seconds)), soft_wrap=True)
    if not report.is_readable:
        raise typer.Exit(1)


def init(
    *,
    log: Log,
    options: StoreOptions,
) -> None:
    """Print settings for a log as YAML, for --config: weir init LOG > weir.yaml."""
    session = options.open({"pipeline.log": log}, is_binding=False)
    set_up_logging(session.notes)
    from weir.check.text import settings_file

    typer.echo(settings_file(_look(session), session.settings), nl=False)


def _followed(session: Session, proposed: int) -> str:
    """Return a line with the time from event to answer for a followed log.

    `proposed` is the window length in seconds that is assumed unless the settings give one.
    """
    from weir.freshness import event_to_answer

    settings = session.settings
    window = settings.pipeline.window_seconds or proposed
    pipeline = settings.pipeline.model_copy(update={"window_seconds": window})
    return event_to_answer(settings.model_copy(update={"pipeline": pipeline}))


def _look(session: Session) -> "LogReport":
    from weir.check.report import check_log
    from weir.pipelines.layout import with_window
    from weir.readers import is_topic

    pipeline = session.settings.pipeline
    with log_files(session, pipeline.log, _NEWEST) as files:
        report = check_log(pipeline.model_copy(update={"log": files.path}))
    more: dict[str, object] = {} if files.newest_rows is None else {"is_complete": False, "all_rows": None}
    if is_topic(pipeline.log) and report.valid:
        # The windows of a live log follow from the freshness wanted, not from the time span of the topic.
        more["window_seconds"] = with_window(session.store, pipeline, follow=True).window_ms // 1000
    return report.model_copy(update={"log": pipeline.log, **more})


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
    from weir.cli.terminal.output import commented

    typer.echo(commented(session.settings), nl=False)


@app.command("check")
@command
def check_settings(
    *,
    file: Annotated[
        Path | None,
        typer.Argument(help="YAML file of settings; checked without reading its store.", show_default="none"),
    ] = None,
    options: StoreOptions,
) -> None:
    """Check the settings: print every invalid one, and exit with status 2 if there is any."""
    open_session(file or options.config, options.store, options.assign, base=None if file is None else {})
    typer.echo("the settings can be used")


@app.command("schema")
@command
def schema() -> None:
    """Print the JSON Schema of the settings file, for completion and checks in editors."""
    from weir.config import schema_text

    typer.echo(schema_text(), nl=False)


def settings(*, options: StoreOptions, json: JsonOutput = False) -> None:
    """Show the settings that all stages of a store share; --set changes them, and says from which window on.

    End the pipeline first, and restart running stages after: a stage reads its settings when it starts. Assigning a
    whole mapping replaces it: --set "pipeline.event_types={play: positive}"; --set pipeline.event_types.skip=negative
    adds to it.
    """
    session = open_session(options.config, options.store, None, recorded={})
    from weir.contracts.storage.format import read_format, read_settings
    from weir.pipelines.maintenance.change_settings import change
    from weir.pipelines.store_settings import recorded

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
    from weir.pipelines.store_settings import spelled

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
    from weir.pipelines.store_settings import OUTSIDE_PIPELINE, spelled

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
    """Return the new values of the settings that --set assigns, by name; raises `UsageError` and `SettingsError`.

    `known` has the present values of the settings that stages share.
    """
    from weir.config import Given, Settings, assignments, effective, located
    from weir.pipelines.store_settings import LASTING, values_of
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
