"""``weir forget``, ``retire`` and ``rebuild``: erase users, retire windows, rebuild a store under other settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.terminal.command import set_up_logging
from weir.cli.terminal.options import AGES, Assign, ConfigFile, JsonOutput, StoreOptions, seconds_of
from weir.cli.terminal.output import print_table
from weir.errors import CommandError, UsageError
from weir.session import open_session, remembered
from weir.text import counted, in_words, plain, shell

if TYPE_CHECKING:
    from weir.contracts import LocalCache, LogState, Store
    from weir.pipelines.batch.ingest import IngestSummary
    from weir.pipelines.maintenance.cleanup import Erasure, Removal
    from weir.pipelines.maintenance.erasure import RedactionReport
    from weir.pipelines.maintenance.retention import RetirementPlan
    from weir.session import Session

__all__ = ["forget", "rebuild", "retire"]


# ruff: noqa: PLC0415 - imports wait until a command runs


def forget(
    *,
    user: Annotated[
        list[str] | None,
        typer.Option("--user", metavar="ID", help="A user to forget; may be repeated.", show_default="none"),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option("--users", metavar="FILE", help="File of users to forget, one id a line.", show_default="none"),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help=f"How long replaced files stay for their readers ({AGES}); 0s: there are none.",
            show_default="pipeline.erasure_days",
        ),
    ] = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Forget users: replace all files that hold them in one commit, and remove files that were replaced earlier.

    Safe beside running processes: after the commit servers know nothing of the users, and new readers do not see their
    events. Every window is read once per command, so name many users at once with --users. The interaction log is yours
    to redact. `weir verify --absent ID` proves that the store no longer holds a user.
    """
    ids = _ids(user, users)
    session = options.open()
    days = session.settings.pipeline.erasure_days
    seconds = 86_400 * days if grace is None else seconds_of(grace, "--grace")
    from weir.cli.terminal.output import Bar
    from weir.contracts import LogState, read_format
    from weir.pipelines.maintenance.cleanup import Erasure
    from weir.pipelines.maintenance.erased_files import Forgotten
    from weir.pipelines.maintenance.erasure import forget_users
    from weir.pipelines.runs.progress import open_files_of

    found = read_format(session.store)
    if found is None:
        raise CommandError(f"{session.store.path('')}: there is no such store")
    forgotten = Forgotten.of(ids, found.key_secret)
    with Bar(session.notes, "forget") as bar:
        report = forget_users(
            session.store,
            session.settings.pipeline,
            forgotten,
            progress=lambda done, total: bar.show(done, total, "commits"),
        )
    state, erasure = LogState.open(session.store), Erasure(session.store, seconds, caches_of(session))
    removed = erasure.run(state)
    is_open = bool(open_files_of(session.store, forgotten.keys))
    facts = _erasure_facts(report, erasure, state, removed) | {"asked": len(forgotten.ids), "in_open_windows": is_open}
    _show_erasure(session, facts, forgotten.ids, json=json)


def caches_of(session: "Session") -> "list[LocalCache]":
    """Return the local caches of pipeline and server on this machine."""
    return [session.settings.pipeline.cache, session.settings.serving.cache]


def _ids(given: list[str] | None, file: Path | None) -> list[str]:
    """Return the ids given by --user and --users, verbatim; raises `UsageError` for no id or an empty one."""
    ids = list(given or ())
    if file is not None:
        try:
            ids += [line for line in file.read_text(encoding="utf-8").split("\n") if line.rstrip("\r")]
        except UnicodeDecodeError as error:
            raise UsageError(f"--users {file}: is not UTF-8: {error}") from None
        ids = [one.rstrip("\r") for one in ids]
    if not ids:
        raise UsageError(
            "name the users to forget: --user ID, which may be repeated, or --users FILE with one id a line"
        )
    if "" in ids:
        raise UsageError("--user is empty, but must be the id of a user")
    return ids


def _erasure_facts(report: "RedactionReport", erasure: "Erasure", state: "LogState", removed: int) -> dict[str, Any]:
    return report.model_dump(mode="json") | {
        "removed": removed,
        "waiting": len(erasure.waiting(state)),
        "waiting_seconds": round(erasure.seconds_left(state)),
    }


def _show_erasure(session: "Session", facts: dict[str, Any], ids: tuple[str, ...], *, json: bool) -> None:
    if json:
        session.print_json(facts)
        return
    for line in _lines(facts, ids):
        session.out.print(plain(line), soft_wrap=True)


def _lines(facts: dict[str, Any], ids: tuple[str, ...]) -> list[str]:
    held = set(facts["held"])
    lines = [f"nothing held of {one}" for one in ids if one not in held]
    if held:
        lines += _replaced(facts, f"{len(held):,} of {len(ids):,} users")
    if facts["removed"]:
        lines.append(f"removed: {facts['removed']:,} files and folders that had been replaced")
    if facts["waiting"]:
        rest = f"they go in {facts['waiting_seconds']:,} s, by the pipeline or the next `weir forget`"
        lines.append(f"waiting: {facts['waiting']:,} replaced files and folders; {rest}")
    if facts["in_open_windows"]:
        rest = "redact the log, and forget again once they are closed"
        lines.append(f"not forgotten: events in windows that are still open; {rest}")
    return lines


def _replaced(facts: dict[str, Any], who: str) -> list[str]:
    lines = []
    if facts["commit"] is not None:
        lines.append(f"forgot {who} by commit {facts['commit']}: {facts['rows']:,} events")
        files = f"{facts['history_files']:,} files of histories, {facts['letters']:,} of dead letters"
        lines.append(f"replaced: {facts['panes']:,} panes, {files}")
    if facts["served_lists"]:
        lines.append(f"removed: {facts['served_lists']:,} served lists from {facts['served_files']:,} files")
    return lines


def retire(
    *,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help=f"Windows that end so long before the newest event: {AGES}.",
            show_default="pipeline.retention_days",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go and what holds back.")] = False,
    grace: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="How long files of retired windows stay for their readers; 0s: there are none."
        ),
    ] = "1h",
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Retire old windows: commit the new horizon, and remove the files of windows retired earlier.

    Events before the horizon become dead letters (`before_retention`). Windows that the trainer, the gate, the monitor
    or the users' histories still need stay, and the output names who needs them. No window retires while files of an
    earlier retirement wait for their grace to end. Safe beside a running pipeline, which restarts its next run.
    """
    session = options.open()
    age = _age(session, older_than)
    from weir.contracts import CommitTakenError, LogState
    from weir.pipelines.maintenance.cleanup import Removal
    from weir.pipelines.maintenance.retention import plan_retirement
    from weir.pipelines.maintenance.retention import retire as carry_out

    if not session.store.exists(""):
        raise CommandError(f"{session.store.path('')}: there is no such store")
    state = LogState.open(session.store)
    removal = Removal(session.store, state, seconds_of(grace, "--grace"))
    removed = 0 if dry_run else removal.run()
    plan = plan_retirement(session.store, state, age, _partitions_of_log(session))
    # Otherwise each retirement would restart the grace of the files that wait.
    dry_run = dry_run or bool(removal.seconds_left() and removal.is_waiting)
    if not dry_run:
        try:
            carry_out(session.store, state, plan)
        except CommitTakenError:
            raise CommandError("another process has committed meanwhile: nothing has retired, try again") from None
        removed += removal.run()
    _show_retirement(session, _retirement_facts(state, plan, removal, removed), plan, state, dry_run=dry_run, json=json)


def _age(session: "Session", older_than: str | None) -> float:
    """Return the age in seconds from which windows retire; raises `UsageError` if open windows could be as old."""
    from weir.pipelines.layout import with_window

    pipeline = with_window(session.store, session.settings.pipeline, follow=False)
    if older_than is None and pipeline.retention_days is None:
        raise UsageError("give --older-than, or set pipeline.retention_days")
    days = pipeline.retention_days or 0.0
    age = 86_400 * days if older_than is None else seconds_of(older_than, "--older-than")
    shortest = pipeline.open_seconds
    if age < shortest:
        raise UsageError(
            f"--older-than is {age:g} s, but windows stay open for {shortest:g} s (pipeline.window_seconds and "
            "pipeline.allowed_lateness_seconds): it must be at least that"
        )
    return age


def _partitions_of_log(session: "Session") -> set[str] | None:
    """Return the keys of the log's partitions (files, or partitions of a topic); None if they cannot be listed."""
    from weir.contracts import UserError
    from weir.pipelines.sources.log import log_source

    try:
        return {partition.key for partition in log_source(session.settings.pipeline).discover()}
    except (OSError, ValueError, ImportError, UserError):
        return None


def _retirement_facts(state: "LogState", plan: "RetirementPlan", removal: "Removal", removed: int) -> dict[str, Any]:
    return {
        "retired": {
            "windows": plan.windows,
            "panes": plan.panes,
            "commits": plan.commits,
            "files": plan.files,
            "bytes": plan.size,
        },
        "held_back": plan.held,
        "holds": [hold._asdict() for hold in plan.holds],
        "removed_commits": removed,
        "waiting_commits": len(removal.waiting()),
        "waiting_panes": len(removal.waiting_panes()),
        "waiting_seconds": round(removal.seconds_left()),
        "horizon_ms": state.horizon.ms if state.horizon else None,
    }


def _show_retirement(
    session: "Session", facts: dict[str, Any], plan: "RetirementPlan", state: "LogState", *, dry_run: bool, json: bool
) -> None:
    if json:
        session.print_json(facts | {"dry_run": dry_run})
        return
    verb = "would retire" if dry_run else "retired"
    size = f"{plan.size / 1e6:,.1f} MB"
    windows = f"{counted(plan.windows, 'window')} in {counted(plan.panes, 'pane')}"
    rows = [
        [verb, windows, f"{plan.files:,} files, {size}, and {counted(plan.commits, 'commit')} without a remaining file"]
    ]
    rows += [["held back", f"from pane {hold.sequence}", f"{hold.reader}: {hold.why}"] for hold in plan.holds]
    if plan.held:
        rows.append(["held back", f"{plan.held:,} panes in all", "older than asked for, but needed"])
    rows.append(["removed", f"{facts['removed_commits']:,} commits with their files", "retired earlier"])
    if facts["waiting_commits"] or facts["waiting_panes"]:
        rest = f"files go in {facts['waiting_seconds']:,} s, by the pipeline or the next `weir retire`"
        waiting = f"{facts['waiting_commits']:,} commits, {facts['waiting_panes']:,} panes of commits that stay"
        rows.append(["waiting", waiting, rest])
    horizon = plan.retirement or "as it was"
    print_table(session, f"{session.store.path('')}: horizon {horizon}", ["", "what", "why"], rows)
    if plan.panes == 0 and not plan.held:
        session.out.print(plain(_none_is_old(state)))


def _none_is_old(state: "LogState") -> str:
    """Return the message that no window is old enough, with the age of the oldest one."""
    if not state.starts:
        return "the store holds no window"
    oldest = in_words((state.max_event_ms - state.starts[0]) / 1000)
    return f"no window is that old: the oldest one starts {oldest} before the newest event"


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

    Settings that are not given come from the old store, which stays in use meanwhile; both use the same keys. The new
    store records the settings for all of its stages. The command can be killed and restarted at any moment. Windows
    lack dead letters, ignored events, duplicates and the ids of events (they keep keys): replay the log (--log) to keep
    them.
    """
    if follow and cut_over:
        raise UsageError("--follow and --cut-over: end the process that follows, then cut over")
    from weir.cli.terminal.output import Bar
    from weir.config import located
    from weir.contracts import Store
    from weir.pipelines.store_settings import recorded

    old = Store(origin)
    # Precedence: settings that a rebuild has recorded, then given settings, then the old store's.
    session = open_session(config, to, assign, {"pipeline.log": log}, _settings_of(old), recorded=recorded(Store(to)))
    set_up_logging(session.notes)
    from prometheus_client import CollectorRegistry

    from weir.contracts import LogState
    from weir.pipelines.batch.cut_over import cut_over as cut
    from weir.pipelines.batch.ingest import ingest
    from weir.pipelines.batch.rebuild import WindowSource, prepare

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
    """Return the nested settings under which a store was written; recorded settings win over remembered ones.

    A store of an older version recorded fewer settings; the settings of histories and features then come from its
    newest windows.
    """
    from weir.contracts import LogState, WindowLog, read_format
    from weir.contracts.storage.format import read_settings
    from weir.pipelines.store_settings import recorded

    found: dict[str, Any] = {}
    newest = LogState.open(old).cursor.sequence - 1 if read_format(old) and read_settings(old) is None else -1
    for pane in WindowLog(old).committed(after=newest - 1) if newest >= 0 else ():
        found |= {"history_length": pane.history_length, "item_features": pane.item_features.model_dump()}
        found["user_features"] = pane.user_features.names.model_dump()
    kept = remembered(old)
    # The old store's pipeline may still use its port.
    kept["pipeline"] = found | kept.get("pipeline", {}) | {"metrics_port": 0}
    for name, value in recorded(old).items():
        section, _, key = name.rpartition(".")
        (kept[section] if section else kept)[key] = value
    return kept
