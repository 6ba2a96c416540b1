"""``weir rebuild``: a store under other settings, beside the running one, and the cut-over to it."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.logs import set_up_logging
from weir.cli.options import Assign, ConfigFile, JsonOutput
from weir.errors import UsageError
from weir.session import open_session, remembered
from weir.text import plain, shell

if TYPE_CHECKING:
    from weir.contracts import Store
    from weir.pipelines.ingest import IngestSummary

__all__ = ["rebuild"]


def rebuild(
    *,
    origin: Annotated[str, typer.Option("--from", metavar="STORE", help="The store to rebuild: a path or fsspec URL.")],
    to: Annotated[str, typer.Option("--to", metavar="STORE", help="The new store; an unfinished one resumes.")],
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            "-l",
            help="Replay this log instead of the windows: file, folder or glob, path or URL; or kafka://host:port/topic.",
            show_default="none",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep taking in what comes until SIGTERM or Ctrl-C.")
    ] = False,
    cut_over: Annotated[
        bool, typer.Option("--cut-over", help="Take in what is left, end the old store, and let its log go on here.")
    ] = False,
    config: ConfigFile = None,
    assign: Assign = None,
    json: JsonOutput = False,
) -> None:
    """Rebuild a store under other settings: window_seconds, user_shards, history_length, sketch.

    Settings that are not given come from the old store, which stays in use meanwhile; both have the same keys. The new
    store records them for all of its stages. It can be
    killed and restarted at any moment. Windows hold no dead letters, ignored events or duplicates, and event ids only
    as keys: a replay of the log brings them, too.
    """
    if follow and cut_over:
        raise UsageError("--follow and --cut-over: end the process that follows, then cut over")
    from weir.cli.progress import Bar
    from weir.config import located
    from weir.contracts import Store
    from weir.pipelines.lasting import recorded

    old = Store(origin)
    # Settings that a rebuild has recorded hold; before that, given settings win over the old store's.
    session = open_session(config, to, assign, {"pipeline.log": log}, _settings_of(old), recorded=recorded(Store(to)))
    set_up_logging(session.notes)
    from prometheus_client import CollectorRegistry

    from weir.contracts import LogState
    from weir.pipelines.cut_over import cut_over as cut
    from weir.pipelines.ingest import ingest
    from weir.pipelines.rebuild import WindowSource, prepare

    pipeline = prepare(old, session.store, session.settings.pipeline, located(session.settings))
    events = None if log else LogState.open(old).counts.events
    with Bar(session.notes, "rebuild") as bar:
        total: list[IngestSummary] = []

        def report(summary: "IngestSummary") -> None:
            total[:] = [total[0] + summary if total else summary]
            bar.show(total[0].valid, events, f"{total[0].valid:,} events, {total[0].windows} windows")

        if cut_over:
            done = cut(old, session.store, pipeline, from_log=log is not None, report=report)
        else:
            source = None if log else WindowSource(old, pipeline)
            metrics = CollectorRegistry()
            done = ingest(session.store, pipeline, follow=follow, report=report, registry=metrics, source=source)
    if json:
        session.print_json(done.model_dump() | {"moved": cut_over})
        return
    what = f"{to}: took in {done.valid:,} events in {done.windows:,} new windows"
    hint = f"; {origin} has ended: run the pipeline, trainer and servers with --store {shell(to)}" if cut_over else ""
    session.out.print(plain(what + hint), soft_wrap=True)


def _settings_of(old: "Store") -> dict[str, Any]:
    """Return the settings under which a store was written, nested: recorded settings win over remembered ones.

    The windows of a store of an older version, which has recorded less, tell of their histories and features.
    """
    from weir.contracts import LogState, WindowLog, read_format
    from weir.contracts.format import read_settings
    from weir.pipelines.lasting import recorded

    found: dict[str, Any] = {}
    newest = LogState.open(old).cursor.sequence - 1 if read_format(old) and read_settings(old) is None else -1
    for pane in WindowLog(old).committed(after=newest - 1) if newest >= 0 else ():
        found |= {"history_length": pane.history_length, "item_features": pane.item_features.model_dump()}
        found["user_features"] = pane.user_features.names.model_dump()
    kept = remembered(old)
    # The pipeline of the old store has the usual port.
    kept["pipeline"] = found | kept.get("pipeline", {}) | {"metrics_port": 0}
    for name, value in recorded(old).items():
        section, _, key = name.rpartition(".")
        (kept[section] if section else kept)[key] = value
    return kept
