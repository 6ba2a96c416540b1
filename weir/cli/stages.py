"""``weir ingest``, ``train``, ``export``, ``serve``, ``monitor``: one stage each, as a process."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.command import DEBUGGING
from weir.cli.logs import set_up_logging
from weir.cli.options import JsonOutput, StoreOptions
from weir.cli.tables import print_facts
from weir.errors import CommandError
from weir.session import Session
from weir.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.ingest import IngestSummary
    from trainer.stream.progress import TrainProgress
    from weir.cli.progress import Bar

__all__ = ["export", "ingest", "monitor", "serve", "stream", "train", "train_worker"]

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

    It can be killed and restarted at any moment: no event is lost or counted twice.
    """
    session = options.open({"pipeline.log": log, "pipeline.kafka.accept_gap": accept_gap or None})
    set_up_logging(session.notes)
    from pipelines.ingest import ingest as run
    from weir.cli.progress import Bar

    with Bar(session.notes, "ingest") as bar:
        summary = run(session.store, session.settings.pipeline, follow=follow, report=_shown(bar))
    _print_facts(session, summary, json=json)


def stream(
    *,
    log: Annotated[
        str | None, typer.Option("--log", "-l", help="The topic: kafka://host:port/topic.", show_default="pipeline.log")
    ] = None,
    accept_gap: AcceptGap = False,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Commit windows as `weir ingest --follow` does, from a topic, in parallel under Flink, until SIGTERM or Ctrl-C.

    It needs Flink, Beam's job server and a pool of workers (`stream` settings). Killed and started again it goes on at
    the commits: no event is lost or counted twice.
    """
    session = options.open({"pipeline.log": log, "pipeline.kafka.accept_gap": accept_gap or None})
    set_up_logging(session.notes)
    from pipelines.stream.driver import stream as run
    from weir.cli.progress import Bar

    with Bar(session.notes, "stream") as bar:
        summary = run(session.store, session.settings.pipeline, session.settings.stream, report=_shown(bar))
    _print_facts(session, summary, json=json)


def _shown(bar: "Bar") -> "Callable[[IngestSummary], None]":
    """Return what adds up reports and shows them."""
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
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Train on the committed windows in order, and export a bundle after each.

    Every window tests the model before the model is trained on it. Training continues from the newest checkpoint.
    """
    # Checked here, wrong settings are reported once and not by every rank.
    session = options.open()
    from contracts.locks import only_one

    with only_one(session.store, "train", "weir train"):
        if ranks == 1:
            train_worker(follow=follow, options=options, json=json)
        else:
            _train_in_ranks(session, ranks, restarts, options, follow=follow, json=json)


def _train_in_ranks(
    session: Session, ranks: int, restarts: int, options: StoreOptions, *, follow: bool, json: bool
) -> None:
    set_up_logging(session.notes)
    arguments = [
        *(("--follow",) if follow else ()),
        *(("--json",) if json else ()),
        *(("--debug",) if DEBUGGING.get() else ()),
    ]
    for name, value in (("--config", options.config), ("--store", session.settings.store)):
        arguments += [name, str(value)] if value is not None else []
    for pair in options.assign or ():
        arguments += ["--set", pair]
    _launch(ranks, restarts, ["-m", "weir", "train-worker", *arguments])


def _launch(ranks: int, restarts: int, command: list[str]) -> None:
    """Do what torchrun does, in this process: start the ranks, restart all when one fails, stop with them.

    The launcher and the ranks meet in files of a private folder: torchrun itself opens a port on all interfaces,
    without authentication.
    """
    import tempfile
    import uuid

    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from trainer.ranks.workers import RENDEZVOUS

    with tempfile.TemporaryDirectory(prefix="weir-ranks-") as folder:
        os.environ[RENDEZVOUS] = f"{folder}/ranks"
        # The launcher would open a port to share its store with the ranks.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        launch = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=str(uuid.uuid4()),
            rdzv_backend="c10d",
            rdzv_endpoint=f"{folder}/launcher",
            # Nobody waits for the heartbeats, and each would make the file longer.
            rdzv_configs={"store_type": "file", "keep_alive_interval": 86400},
            local_addr="127.0.0.1",
            max_restarts=restarts,
            monitor_interval=0.2,
        )
        try:
            elastic_launch(launch, sys.executable)(*command)
        except SignalException as stopped:
            raise typer.Exit(0 if stopped.sigval == signal.SIGTERM else 130) from None
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = failure.exitcode
            how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
            raise CommandError(f"rank {rank} {how}, after {restarts} restarts; its last lines are above") from error


def train_worker(
    *,
    follow: Follow = False,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Run one rank of a training run."""
    if "RANK" in os.environ:
        from weir.up.supervisor.parent import die_with_parent

        # A rank without its launcher would wait for its peers forever.
        die_with_parent(signal.SIGKILL)
    session = options.open()
    first = os.environ.get("RANK", "0") == "0"
    set_up_logging(session.notes)
    from trainer.export.tracing import tracing_of

    if first and follow:
        # Beside the imports below, which take as long; the first bundle waits for both.
        tracing_of(session.settings.trainer.tower)
    from trainer.train import train as run
    from weir.cli.progress import Bar

    with Bar(session.notes, "train") as bar:

        def report(progress: "TrainProgress") -> None:
            loss = "" if progress.loss is None else f", loss {progress.loss:.3f}"
            bar.show(progress.batch, progress.batches, f"window {progress.sequence} ({progress.window}){loss}")

        summary = run(session.store, session.settings.trainer, follow=follow, report=report)
    if not first:
        return
    _print_facts(session, summary, json=json)
    if summary.bundle is None and not summary.windows:
        hint = f"{session.store.path('')} holds no window to train on: `weir ingest` commits them"
        session.notes.print(plain(hint), soft_wrap=True)


def export(
    *,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Export a bundle (user tower, index, items) from the newest checkpoint; promote it if it passes the gate."""
    session = options.open()
    set_up_logging(session.notes)
    from trainer.export import export as run

    manifest = run(session.store, session.settings.trainer)
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
    from serving.catalogue import CatalogueFiles
    from serving.server import serve as run

    settings = session.settings
    run(
        session.store,
        settings.serving,
        CatalogueFiles(settings.catalogue, settings.takedown, settings.pipeline.item_features),
    )


def monitor(
    *,
    options: StoreOptions,
) -> None:
    """Measure Recall@k of each window through the running server, separately for index, model and service."""
    session = options.open()
    set_up_logging(session.notes)
    from contracts.locks import only_one
    from serving.monitor.loop import monitor as run
    from weir.page.server import page_served

    with only_one(session.store, "monitor", "weir monitor"), page_served(session.settings, session.store):
        run(session.store, session.settings.monitor, session.settings.client)


def _print_facts(session: Session, result: Any, *, json: bool) -> None:
    if json:
        session.print_json(result)
    else:
        print_facts(session, result if isinstance(result, dict) else result.model_dump(mode="json"))
