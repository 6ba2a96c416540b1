"""``weir check`` and ``weir init``: what a log holds, and the settings that fit it."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from typing import Annotated

import typer

from weir.cli.logs import set_up_logging
from weir.cli.options import JsonOutput, StoreOptions

__all__ = ["check", "init"]

Log = Annotated[str, typer.Argument(help="The log: file, folder or glob, path or URL; JSON Lines, Parquet, CSV, TSV.")]


def check(
    *,
    log: Log,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Say what a log holds, what is wrong with it, and which settings fit; exit status 1 if no row is valid as it is.

    It looks at a sample: pieces of the files from the first to the last.
    """
    session = options.open({"pipeline.log": log})
    set_up_logging(session.notes)
    from weir.check.report import check_log
    from weir.check.text import print_report

    report = check_log(session.settings.pipeline)
    if json:
        session.print_json(report)
    else:
        print_report(session.out, report)
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
    from weir.check.report import check_log

    typer.echo(settings_file(check_log(session.settings.pipeline), session.settings), nl=False)
