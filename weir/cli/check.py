"""``weir check`` and ``weir init``: what a log holds, and the settings that fit it."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from typing import TYPE_CHECKING, Annotated, Final

import typer

from weir.cli.logs import set_up_logging
from weir.cli.options import JsonOutput, StoreOptions
from weir.cli.topics import log_files
from weir.session import Session

if TYPE_CHECKING:
    from weir.check.report import LogReport

__all__ = ["check", "init"]

Log = Annotated[
    str,
    typer.Argument(
        help="The log: file, folder or glob, path or URL; JSON Lines, Parquet, CSV, TSV; or kafka://host:port/topic."
    ),
]

_NEWEST: Final = 200_000
"""Messages of a topic that are looked at."""


def check(
    *,
    log: Log,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Say what a log holds, what is wrong with it, and which settings fit; exit status 1 if no row is valid as it is.

    It looks at a sample: pieces of the files from the first to the last, or the newest messages of a topic.
    """
    session = options.open({"pipeline.log": log})
    set_up_logging(session.notes)
    from weir.check.text import print_report

    report = _look(session)
    if json:
        session.print_json(report)
    else:
        print_report(session.out, report, session.given)
    if not report.is_readable:
        raise typer.Exit(1)


def init(
    *,
    log: Log,
    options: StoreOptions,
) -> None:
    """Print settings for a log as YAML, for --config: weir init LOG > weir.yaml."""
    session = options.open({"pipeline.log": log})
    set_up_logging(session.notes)
    from weir.check.file import settings_file

    typer.echo(settings_file(_look(session), session.settings), nl=False)


def _look(session: Session) -> "LogReport":
    from weir.check.report import check_log

    pipeline = session.settings.pipeline
    with log_files(session, pipeline.log, _NEWEST) as files:
        report = check_log(pipeline.model_copy(update={"log": files.path}))
    whole = {} if files.newest_rows is None else {"is_complete": False, "all_rows": None}
    return report.model_copy(update={"log": pipeline.log, **whole})
