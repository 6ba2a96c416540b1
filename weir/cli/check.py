"""``weir check`` and ``weir init``: what a log holds, and the settings that fit it."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from typing import TYPE_CHECKING, Annotated, Final

import typer

from weir.cli.logs import set_up_logging
from weir.cli.options import JsonOutput, StoreOptions
from weir.cli.topics import log_files
from weir.session import Session
from weir.text import plain

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
    from weir.check.file import settings_file

    typer.echo(settings_file(_look(session), session.settings), nl=False)


def _followed(session: Session, proposed: int) -> str:
    """Return how fresh answers are where the log is followed, with the window of the settings or the proposed one."""
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
        # A live log has windows by how old an answer may be, not by the span of what the topic holds.
        more["window_seconds"] = with_window(session.store, pipeline, follow=True).window_ms // 1000
    return report.model_copy(update={"log": pipeline.log, **more})
