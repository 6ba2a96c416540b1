"""``weir data``: public data sets as logs."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from pathlib import Path
from typing import Annotated

import typer

from weir.cli.command import command
from weir.cli.options import JsonOutput
from weir.errors import UsageError
from weir.session import open_session
from weir.text import plain, program, shell

__all__ = ["app"]

app = typer.Typer(help="Turn a downloaded data set into a log.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Turn a downloaded data set into a log."""


@app.command("movielens")
@command
def movielens(
    *,
    folder: Annotated[Path, typer.Argument(help="The unpacked folder, such as ml-1m, ml-latest-small or ml-100k.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Log to write, Parquet.", show_default="FOLDER's name and .parquet, here"),
    ] = None,
    json: JsonOutput = False,
) -> None:
    """Write the ratings of a MovieLens folder as a log, in order of time; each rating is an event."""
    from weir.cli.progress import PLAIN_SECONDS, Bar
    from weir.cli.tables import minute
    from weir.datasets.movielens import convert

    target = Path(f"{folder.resolve().name}.parquet") if output is None else output
    if target.suffix.lower() != ".parquet":
        raise UsageError(f"--output {target}: the log is Parquet, so its name ends in .parquet")
    session = open_session(None, None, None, base={})
    with Bar(session.notes, "movielens", plain_seconds=PLAIN_SECONDS) as bar:

        def report(doing: str, share: float) -> None:
            bar.show(round(100 * share), 100, f"{share:.0%} of the ratings {doing}")

        found = convert(folder, target, report)
    if json:
        session.print_json(found)
        return
    span = f"{minute(found.start_ms / 1000)} to {minute(found.end_ms / 1000)} UTC"
    facts = f"{found.events:,} events, {found.users:,} users, {found.items:,} items; {span}"
    session.out.print(plain(f"{found.log}: {facts}"), soft_wrap=True)
    session.out.print(plain(f"next: {program()} evaluate --quick --log {shell(found.log)}"), soft_wrap=True)
