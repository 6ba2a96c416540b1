"""``weir forget``: users leave the store, with all that it holds of them."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.ages import AGES, seconds_of
from weir.cli.options import JsonOutput, StoreOptions
from weir.errors import CommandError, UsageError
from weir.text import plain

if TYPE_CHECKING:
    from weir.contracts import LocalCache, LogState
    from weir.pipelines.erasure import Erasure
    from weir.pipelines.redaction import RedactionReport
    from weir.session import Session

__all__ = ["forget"]


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
            help=f"How long replaced files stay for those who read them ({AGES}); 0s: nobody does.",
            show_default="pipeline.erasure_days",
        ),
    ] = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Forget users: one commit replaces all files that hold them, and files replaced long enough ago are removed.

    Safe beside running processes: from then on servers know nothing of the users, and no new reader sees their events.
    Forget many users at once with --users: every window is looked at once. The interaction log is yours to redact.
    `weir verify --absent ID` proves that the store no longer holds a user.
    """
    ids = _ids(user, users)
    session = options.open()
    days = session.settings.pipeline.erasure_days
    seconds = 86_400 * days if grace is None else seconds_of(grace, "--grace")
    from weir.cli.progress import Bar
    from weir.contracts import LogState, read_format
    from weir.pipelines.erasure import Erasure
    from weir.pipelines.forgotten import Forgotten
    from weir.pipelines.open_rows import open_files_of
    from weir.pipelines.redaction import forget_users

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
    facts = _facts(report, erasure, state, removed) | {"asked": len(forgotten.ids), "in_open_windows": is_open}
    _show(session, facts, forgotten.ids, json=json)


def caches_of(session: "Session") -> "list[LocalCache]":
    """Return the caches that the settings name on this machine."""
    return [session.settings.pipeline.cache, session.settings.serving.cache]


def _ids(given: list[str] | None, file: Path | None) -> list[str]:
    """Return the ids that the options name, as the log spells them."""
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


def _facts(report: "RedactionReport", erasure: "Erasure", state: "LogState", removed: int) -> dict[str, Any]:
    return report.model_dump(mode="json") | {
        "removed": removed,
        "waiting": len(erasure.waiting(state)),
        "waiting_seconds": round(erasure.seconds_left(state)),
    }


def _show(session: "Session", facts: dict[str, Any], ids: tuple[str, ...], *, json: bool) -> None:
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
