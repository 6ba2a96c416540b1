"""The stages as processes: ``weir ingest``, ``retry``, ``stream``, ``train``, ``export``, ``serve``, ``up``, ..."""

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.ranks import Nodes, arguments_of, is_first_rank, run_in_ranks
from weir.cli.terminal.command import set_up_logging
from weir.cli.terminal.options import JsonOutput, StoreOptions, Variant
from weir.cli.terminal.output import print_facts
from weir.errors import CommandError, UsageError
from weir.session import Session, open_session
from weir.text import counted, plain, setting, shell
from weir.up.options import UpOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from weir.cli.terminal.output import Bar
    from weir.pipelines.batch.ingest import IngestSummary
    from weir.trainer.stream.progress import TrainProgress

__all__ = ["export", "histories", "ingest", "monitor", "retry", "serve", "stream", "train", "train_worker", "up"]


# ruff: noqa: PLC0415 - imports wait until a command runs


logger = logging.getLogger(__name__)

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Keep processing new data until SIGTERM or Ctrl-C.")]
AcceptGap = Annotated[
    bool,
    typer.Option(
        "--accept-gap", help="Continue behind messages that the broker lost or deleted before they were committed."
    ),
]
Ranks = Annotated[int, typer.Option(min=1, help="Number of training processes on this machine.")]


def ingest(
    *,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            "-l",
            help="The log: file, folder or glob, path or URL; or kafka://host:port/topic.",
            show_default="log",
        ),
    ] = None,
    follow: Follow = False,
    accept_gap: AcceptGap = False,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Read the log, reject invalid rows, drop duplicates, and commit windows of event time to the store.

    It can be killed and restarted at any moment: no event is lost or counted twice. Without `--follow` the exit status
    is 1 if all new rows were refused.
    """
    session = options.open({"pipeline.log": log, "pipeline.kafka.accept_gap": accept_gap or None})
    set_up_logging(session.notes)
    from weir.cli.terminal.output import Bar
    from weir.config import located
    from weir.pipelines.batch.ingest import ingest as run

    with Bar(session.notes, "ingest") as bar:
        summary = run(
            session.store,
            session.settings.pipeline,
            follow=follow,
            report=_shown(bar),
            named=located(session.settings),
        )
    _print_facts(session, summary, json=json)
    if not follow and summary.dead and summary.dead == summary.read:
        from weir.readers import HINTS, Reason, then_retry

        reason = Reason(max(summary.refused, key=summary.refused.__getitem__))
        refused = f"none of {counted(summary.dead, 'new row')} is valid, {summary.refused[reason]:,} for {reason}"
        raise CommandError(f"{refused}: {HINTS[reason]}{then_retry(reason)}")


def retry(
    *,
    reasons: Annotated[
        list[str] | None,
        typer.Argument(metavar="[REASON]...", help="Reasons for which rows were refused.", show_default="all"),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            "--log", "-l", help="The log of the store: its CSV, TSV and Parquet files name columns.", show_default="log"
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be read again.")] = False,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Read refused rows again from their dead letters, under the present settings, and commit the valid ones.

    Useful for rows refused because of a clock, a file's time or a setting. It can be killed and run again at any
    moment: each row counts once. End the pipeline of a local store first.
    """
    from weir.readers import Reason

    if unknown := sorted({*(reasons or [])} - {*map(str, Reason)}):
        raise UsageError(f"{unknown[0]}: there is no such reason; allowed: {', '.join(Reason)}")
    session = options.open({"pipeline.log": log})
    set_up_logging(session.notes)
    from weir.pipelines.batch.read_dead_letters import UnreadableCause
    from weir.pipelines.batch.retry import HINTS_OF_LEFT
    from weir.pipelines.batch.retry import retry as run

    summary = run(session.store, session.settings.pipeline, reasons or (), dry_run=dry_run)
    _print_facts(session, summary, json=json)
    for cause, count in summary.left.items():
        first = f"{counted(count, 'letter')} (the first: {summary.first_left[cause]})"
        session.notes.print(plain(f"{first} {HINTS_OF_LEFT[UnreadableCause(cause)]}"), soft_wrap=True)


def stream(
    *,
    log: Annotated[
        str | None, typer.Option("--log", "-l", help="The topic: kafka://host:port/topic.", show_default="pipeline.log")
    ] = None,
    accept_gap: AcceptGap = False,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Commit the windows of a topic as `weir ingest --follow` does, in parallel under Flink, until SIGTERM or Ctrl-C.

    It needs Flink, Beam's job server and a pool of workers (`stream` settings). After a restart it resumes from the
    commits: no event is lost or counted twice.
    """
    session = options.open({"pipeline.log": log, "pipeline.kafka.accept_gap": accept_gap or None})
    set_up_logging(session.notes)
    from weir.cli.terminal.output import Bar
    from weir.config import located
    from weir.pipelines.stream.driver import stream as run

    with Bar(session.notes, "stream") as bar:
        settings = session.settings
        summary = run(session.store, settings.pipeline, settings.stream, report=_shown(bar), named=located(settings))
    _print_facts(session, summary, json=json)


def _shown(bar: "Bar") -> "Callable[[IngestSummary], None]":
    """Return a callback that adds up the summaries it is given, and shows their total in the bar."""
    total: list[IngestSummary] = []

    def report(summary: "IngestSummary") -> None:
        total[:] = [total[0] + summary if total else summary]
        bar.show(None, None, f"{total[0].valid:,} events, {total[0].windows} windows, {total[0].dead} dead")

    return report


def train(
    *,
    ranks: Ranks = 1,
    follow: Follow = False,
    restarts: Annotated[
        int, typer.Option(min=0, help="With several ranks: rank failures tolerated before giving up.")
    ] = 3,
    nodes: Annotated[
        str | None,
        typer.Option(help="Machines that train together: 2, or from 1 to 4 as 1:4. Each runs this command."),
    ] = None,
    meet: Annotated[
        str | None, typer.Option(help="With --nodes: host:port of the first machine, where all meet.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="With --nodes: this machine, as the others reach it.", show_default="what leads to --meet"),
    ] = None,
    variant: Variant = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Train on the committed windows in order, and export a bundle after each.

    The model is tested on each window before it trains on it. Training resumes from the newest checkpoint. With
    `--nodes` it continues within seconds when a machine is lost or added, with the machines that are there.
    """
    together = Nodes.of(nodes, meet, address)
    # Checked here, so that wrong settings are reported once instead of by every rank.
    session = options.open()
    config = session.settings.trainer.of_variant(_line(variant))
    if together is None:
        config.check_stream(ranks)
    from weir.contracts.bundles.variants import MAIN
    from weir.contracts.storage.locks import only_one

    named = () if _line(variant) == MAIN else ("--variant", _line(variant))
    alone = only_one(session.store, "-".join(["train", *named[1:]]), " ".join(["weir train", *named]))
    # Nodes of one run may share a store, so they take no lock.
    with alone if together is None else nullcontext():
        if ranks == 1 and together is None:
            train_worker(follow=follow, variant=variant, options=options, json=json)
        else:
            set_up_logging(session.notes)
            flags = [*(("--follow",) if follow else ()), *named, *(("--json",) if json else ())]
            worker = ["train-worker", *flags, *arguments_of(options, session.settings.store)]
            run_in_ranks(ranks, restarts, worker, together)


def train_worker(
    *,
    follow: Follow = False,
    variant: Variant = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Run one rank of a training run."""
    first = is_first_rank()
    session = options.open()
    config = session.settings.trainer.of_variant(_line(variant))
    set_up_logging(session.notes)
    from weir.trainer.export.tracing import tracing_of

    if first and follow:
        # In parallel with the imports below, which take as long; the first bundle waits for both.
        tracing_of(config.tower)
    from weir.cli.terminal.output import Bar
    from weir.trainer.train import train as run

    with Bar(session.notes, "train") as bar:

        def report(progress: "TrainProgress") -> None:
            loss = "" if progress.loss is None else f", loss {progress.loss:.3f}"
            bar.show(progress.batch, progress.batches, f"pane {progress.sequence} ({progress.window}){loss}")

        summary = run(session.store, config, variant=_line(variant), follow=follow, report=report)
    if not first:
        return
    _print_facts(session, summary, json=json)
    if summary.bundle is None and not summary.windows:
        hint = f"{session.store.path('')} holds no window to train on: `weir ingest` commits them"
        session.notes.print(plain(hint), soft_wrap=True)


def _line(variant: str | None) -> str:
    """Return the variant that --variant names; `MAIN`, the plain settings, without the option."""
    from weir.contracts.bundles.variants import MAIN

    return variant or MAIN


def export(
    *,
    variant: Variant = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Export a bundle (user tower, index, items) from the newest checkpoint; promote it if it passes the gate."""
    session = options.open()
    set_up_logging(session.notes)
    from weir.trainer.export import export as run

    manifest = run(session.store, session.settings.trainer.of_variant(_line(variant)), _line(variant))
    facts = manifest.model_dump(mode="json", exclude={"files"})
    _print_facts(session, facts, json=json)


def serve(
    *,
    port: Annotated[
        int | None, typer.Option("--port", "-p", help="gRPC port; 0 takes a free one.", show_default="50051")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    options: StoreOptions,
) -> None:
    """Answer queries over gRPC from the promoted bundle, and swap to each new one without failing a request."""
    session = options.open({"serving.port": port, "serving.host": host})
    set_up_logging(session.notes)
    from weir.serving.bundles.catalogue import CatalogueFiles
    from weir.serving.server import serve as run

    settings, log = session.settings, session.settings.pipeline
    _look_for_files(session)
    run(
        session.store,
        settings.serving,
        CatalogueFiles(settings.catalogue, settings.takedown, log.item_features, log.missing_ids),
        tuple(settings.trainer.variants),
    )


def _look_for_files(session: Session) -> None:
    """Log a warning if the settings name a catalogue or takedown list that does not exist any more."""
    from weir.contracts.storage.remote_files import WatchedFile
    from weir.pipelines.store_settings import OUTSIDE_PIPELINE, recorded

    for name, place in recorded(session.store).items():
        if name not in OUTSIDE_PIPELINE or not isinstance(place, str):
            continue
        try:
            WatchedFile(place).stamp()
        except FileNotFoundError:
            moved = f"weir settings --store {shell(session.store.url)} {setting(f'{name}=PLACE')}"
            logger.warning(
                "%s: %s names this %s, which is not there; if it moved: %s", place, session.store.url, name, moved
            )


def monitor(
    *,
    options: StoreOptions,
) -> None:
    """Measure Recall@k of each window through the running server, separately for index, model and service."""
    session = options.open()
    set_up_logging(session.notes)
    from weir.contracts.storage.locks import only_one
    from weir.page.server import page_served
    from weir.serving.monitor.comparison import Contest
    from weir.serving.monitor.loop import monitor as run
    from weir.serving.variants import check_roles

    settings = session.settings
    names = tuple(settings.trainer.variants)
    check_roles(session.store, names)
    with only_one(session.store, "monitor", "weir monitor"), page_served(settings, session.store):
        contest = Contest(names, settings.serving.challenger_share)
        run(session.store, settings.monitor, settings.client, contest)


def _print_facts(session: Session, result: Any, *, json: bool) -> None:
    if json:
        session.print_json(result)
    else:
        print_facts(session, result if isinstance(result, dict) else result.model_dump(mode="json"))


def histories(
    *,
    redis: Annotated[
        str | None, typer.Option(help="Where to write: redis://HOST:PORT/DATABASE.", show_default="histories.redis")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep following until SIGTERM or Ctrl-C.")] = False,
    options: StoreOptions,
) -> None:
    """Copy the histories of users to Redis, for servers with `serving.histories = redis://...`.

    First all users, then the users of new commits. It can be killed and restarted at any moment.
    """
    session = options.open({"histories.redis": redis})
    set_up_logging(session.notes)
    from weir.serving.histories.redis_follower import follow as run

    run(session.store, session.settings.histories, forever=follow)


def up(*, wanted: UpOptions, options: StoreOptions, json: JsonOutput = False) -> None:
    """Run pipeline, trainer, server and monitor on this machine; restart a process that dies, and stop all together.

    Without --demo or --log FILE the stages follow the topic at --log, or the log of the setting pipeline.log. The log
    is first checked as by `weir check`. Ctrl-C stops everything gracefully, a second one at once. The output of each
    process is in STORE/logs/NAME.log.
    """
    from weir.contracts.storage.locks import only_one
    from weir.up.prepare import prepare
    from weir.up.run import run_up

    store = open_session(options.config, options.store, options.assign, base={}).store
    with only_one(store, "up", "weir up"):
        launch = prepare(options.config, options.store, options.assign, wanted)
        summary = run_up(launch)
    if summary is None:
        raise typer.Exit(130 if wanted.once else 0)
    if json:
        launch.session.print_json(summary)
    if summary.failures:
        raise CommandError("the replay failed: " + "; ".join(summary.failures))
