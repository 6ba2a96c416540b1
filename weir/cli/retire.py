"""``weir retire``: windows that are old enough leave the store, where nobody needs them any more."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.ages import AGES, seconds_of
from weir.cli.options import JsonOutput, StoreOptions
from weir.cli.tables import print_table
from weir.errors import CommandError, UsageError
from weir.text import counted, in_words, plain

if TYPE_CHECKING:
    from weir.contracts import LogState
    from weir.pipelines.removal import Removal
    from weir.pipelines.retention import RetirementPlan
    from weir.session import Session

__all__ = ["retire"]


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
            metavar="AGE", help="How long files of retired windows stay for those who read them; 0s: nobody does."
        ),
    ] = "1h",
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Retire old windows: commit the new horizon, and remove the files of those that retired before.

    Events before the horizon become dead letters (`before_retention`). Windows that the trainer, the gate, the monitor
    or the histories of users still need stay; the output says who needs them. Nothing more retires while files of
    the last time wait for the grace to end. Safe beside a running pipeline, which starts its next run again.
    """
    session = options.open()
    age = _age(session, older_than)
    from weir.contracts import CommitTakenError, LogState
    from weir.pipelines.removal import Removal
    from weir.pipelines.retention import plan_retirement
    from weir.pipelines.retention import retire as carry_out

    if not session.store.exists(""):
        raise CommandError(f"{session.store.path('')}: there is no such store")
    state = LogState.open(session.store)
    removal = Removal(session.store, state, seconds_of(grace, "--grace"))
    removed = 0 if dry_run else removal.run()
    plan = plan_retirement(session.store, state, age, _partitions_of_log(session))
    # Otherwise each retirement would start the time of grace again.
    dry_run = dry_run or bool(removal.seconds_left() and removal.is_waiting)
    if not dry_run:
        try:
            carry_out(session.store, state, plan)
        except CommitTakenError:
            raise CommandError("another process has committed meanwhile: nothing has retired, try again") from None
        removed += removal.run()
    _show(session, _facts(state, plan, removal, removed), plan, state, dry_run=dry_run, json=json)


def _age(session: "Session", older_than: str | None) -> float:
    """Return the age from which windows retire, in seconds; windows that may still be open must be younger."""
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
    """Return the keys of the log's files, or of the topic's partitions; None where they cannot be listed from here."""
    from weir.contracts import UserError
    from weir.pipelines.sources import log_source

    try:
        return {partition.key for partition in log_source(session.settings.pipeline).discover()}
    except (OSError, ValueError, ImportError, UserError):
        return None


def _facts(state: "LogState", plan: "RetirementPlan", removal: "Removal", removed: int) -> dict[str, Any]:
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


def _show(
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
    """Return that no window is old enough, and how old the oldest one is."""
    if not state.starts:
        return "the store holds no window"
    oldest = in_words((state.max_event_ms - state.starts[0]) / 1000)
    return f"no window is that old: the oldest one starts {oldest} before the newest event"
