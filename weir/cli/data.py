"""``weir generate``, ``produce``, ``replay`` and ``data``: sample logs and public data sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.terminal.command import command, set_up_logging
from weir.cli.terminal.options import JsonOutput, StoreOptions
from weir.errors import UsageError
from weir.session import open_session
from weir.text import plain, program, shell, visible

if TYPE_CHECKING:
    from weir.demo.replay import ReplaySummary

__all__ = ["app", "generate", "produce", "replay"]


# ruff: noqa: PLC0415 - imports wait until a command runs


def generate(
    output: Annotated[Path, typer.Argument(help="File to write: JSON Lines, gzipped where it ends in .gz.")],
    *,
    users: Annotated[int, typer.Option(min=1, help="Number of users.")] = 3000,
    items: Annotated[int, typer.Option(min=40, help="Approximate number of items; a quarter appear over time.")] = 2000,
    events: Annotated[int, typer.Option(min=1, help="Number of distinct valid events.")] = 200_000,
    days: Annotated[int, typer.Option(min=1, help="Simulated days of event time.")] = 30,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same log, byte for byte.")] = 0,
    catalogue: Annotated[
        Path | None,
        typer.Option(help="Also write the items with their tags (genre, label) as JSON Lines.", show_default="none"),
    ] = None,
    json: JsonOutput = False,
) -> None:
    """Generate a log of listeners and records, with planted interests, duplicates, late events and malformed lines.

    Prints the counts: lines = events + duplicates + malformed.
    """
    import gzip

    from weir.contracts import Store
    from weir.demo.generator import GeneratorConfig, catalogue_of
    from weir.demo.generator import generate as make
    from weir.readers import has_ending

    if catalogue is not None and not has_ending(catalogue.name, [".jsonl"]):
        raise UsageError(f"{catalogue}: a generated catalogue ends in .jsonl")
    if not has_ending(output.name, (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".ndjson", ".ndjson.gz")):
        raise UsageError(f"{output}: a log ends in .jsonl, .json or .ndjson, optionally followed by .gz")
    config = GeneratorConfig(users=users, items=items, events=events, days=days, seed=seed)
    made = make(config)
    data = gzip.compress(made.lines, mtime=0) if has_ending(output.name, [".gz"]) else made.lines
    Store(str(output.parent)).write(output.name, data)
    if catalogue is not None:
        Store(str(catalogue.parent)).write(catalogue.name, catalogue_of(config).lines())
    if json:
        typer.echo(made.truth.model_dump_json(indent=2))
        return
    truth = made.truth
    typer.echo(
        f"{visible(output)}: {truth.lines:,} lines: {truth.events:,} events of {truth.users:,} users and "
        f"{truth.items:,} items ({truth.skips:,} skips, {truth.late:,} late), {truth.duplicates:,} duplicates, "
        f"{truth.malformed:,} malformed"
    )


def produce(
    *,
    log: Annotated[
        str | None, typer.Option("--log", "-l", help="The topic: kafka://host:port/topic.", show_default="pipeline.log")
    ] = None,
    lines: Annotated[
        Path | None, typer.Option(help="Send the lines of this file once, instead; - is standard input.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Events per second.")] = 50.0,
    users: Annotated[int, typer.Option(min=1, help="Number of users.")] = 3000,
    items: Annotated[int, typer.Option(min=40, help="Approximate number of items.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same users, items and order.")] = 0,
    options: StoreOptions,
) -> None:
    """Send generated events to a topic at --rate until SIGTERM or Ctrl-C, or send the lines of a file once."""
    import sys

    from weir.demo.generator import GeneratorConfig
    from weir.demo.live import live_events
    from weir.demo.live import produce as run
    from weir.pipelines.kafka_config import Topic
    from weir.readers import is_topic
    from weir.runtime.stopping import ended_by_signals

    if rate <= 0:
        raise UsageError(f"--rate {rate}: must be above 0")
    session = options.open({"pipeline.log": log})
    set_up_logging(session.notes)
    pipeline = session.settings.pipeline
    if not is_topic(pipeline.log):
        raise UsageError(f"pipeline.log = {pipeline.log} is no topic: name one with --log kafka://host:port/topic")
    if lines is None:
        # An outage would deliver its events late, but live events happen now.
        events = live_events(GeneratorConfig(users=users, items=items, seed=seed, outages=0, late=0))
    else:
        found = sys.stdin.buffer.read() if lines == Path("-") else lines.read_bytes()
        events = iter(found.splitlines())
    with ended_by_signals() as stop:
        sent = run(Topic.parse(pipeline.log), pipeline.kafka, events, rate, stop)
    session.out.print(plain(f"sent {sent:,} events to {pipeline.log}"))


def replay(
    *,
    log: Annotated[Path, typer.Argument(help="A finished log: JSON Lines, CSV, TSV (each also .gz) or Parquet.")],
    seconds: Annotated[float, typer.Option(help="Wall-clock duration of the whole replay, in seconds.")] = 120.0,
    segments: Annotated[int, typer.Option(min=1, max=99_999, help="Slices of event time; each becomes a file.")] = 240,
    to: Annotated[str | None, typer.Option(help="Folder for the segments.", show_default="pipeline.log")] = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Replay a finished log faster than real time, as segments in a folder; a killed replay resumes when restarted.

    Saves the event-time clock in the store, so that delays are reported in wall-clock seconds.
    """
    from weir.cli.terminal.output import Bar
    from weir.contracts import Store
    from weir.demo.replay import ReplayConfig
    from weir.demo.replay import replay as run
    from weir.readers import is_topic

    if seconds <= 0:
        raise UsageError(f"--seconds {seconds}: must be above 0")
    session = options.open({"pipeline.log": to})
    set_up_logging(session.notes)
    pipeline = session.settings.pipeline
    if is_topic(pipeline.log):
        raise UsageError(f"pipeline.log = {pipeline.log} is a topic, but segments need a folder: name one with --to")
    with Bar(session.notes, "replay") as bar:

        def report(summary: "ReplaySummary") -> None:
            bar.show(summary.placed_segments, summary.segments, f"{summary.placed_rows:,} rows")

        summary = run(
            log,
            Store(pipeline.log),
            session.store,
            ReplayConfig(seconds=seconds, segments=segments),
            report=report,
            log_config=pipeline,
        )
    if json:
        session.print_json(summary)
    else:
        session.out.print(
            plain(f"placed {summary.placed_rows:,} rows in {summary.placed_segments} segments of {pipeline.log}")
        )


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
    from weir.cli.terminal.output import PLAIN_SECONDS, Bar, minute
    from weir.datasets import convert

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
