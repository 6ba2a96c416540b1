"""What ``weir inspect windows`` shows, and the names by which windows are asked for: all that it prints."""

from typing import Any

from weir.cli.tables import minute, print_table
from weir.contracts import LogState, Store, WindowLog, WindowManifest
from weir.errors import CommandError
from weir.session import Session
from weir.text import counted, in_words, plain

__all__ = ["find_windows", "no_window", "print_windows", "window_facts", "windows_of"]


def find_windows(store: Store, wanted: str) -> list[WindowManifest]:
    """Return the panes that a name stands for, in commit order; none where there is no such window.

    A name is the number, name or folder of a pane, or the slice or start of a window, which may have several
    panes.
    """
    return [manifest for manifest in WindowLog(store) if wanted in _names(store, manifest)]


def _names(store: Store, manifest: WindowManifest) -> set[str]:
    names = {str(manifest.sequence), str(manifest.name), manifest.name.slice, minute(manifest.start_ms / 1000)}
    return names | {manifest.folder, store.path(manifest.folder)}


def windows_of(store: Store, wanted: str | None, last: int | None) -> list[WindowManifest]:
    """Return the newest windows, None for all, or those that a name stands for; raises `CommandError`."""
    if wanted is None:
        return list(WindowLog(store)) if last is None else WindowLog(store).newest(last)
    if not (found := find_windows(store, wanted)):
        raise CommandError(no_window(store, wanted))
    return found


def no_window(store: Store, wanted: str) -> str:
    """Return what to say where a name stands for no window."""
    newest = WindowLog(store).newest(1)
    if not newest:
        return f"{store.path('')} holds no window yet: `weir ingest` commits them"
    first = WindowLog(store).left(-1) + 1
    if wanted.isdecimal():
        return f"there is no pane {wanted}; there are {first} to {newest[0].sequence}"
    return (
        f"{wanted} is neither the number of a pane nor a window of {store.path('')}: `weir inspect windows` lists them"
    )


def print_windows(session: Session, manifests: list[WindowManifest], wanted: str | None) -> None:
    """Print a table of panes, with their folders where panes were asked for by name."""
    where = session.store.path("")
    if not manifests:
        session.out.print(plain(f"{where} holds no window yet: `weir ingest` commits them"))
        return
    length = in_words((manifests[-1].end_ms - manifests[-1].start_ms) / 1000)
    state = LogState.open(session.store)
    total = counted(sum(panes.count for panes in state.panes), "pane")
    shown = total if len(manifests) == sum(panes.count for panes in state.panes) else f"{len(manifests):,} of {total}"
    title = f"{shown if wanted is None else wanted} in {where}, of {counted(len(state.starts), 'window')}"
    print_table(
        session,
        f"{title} of {length}",
        ["pane", "window from (UTC)", "in window", "events", "negative", "duplicate", "late", "items", "committed"],
        [_row(manifest) for manifest in manifests],
    )
    for manifest in manifests if wanted is not None else ():
        session.out.print(plain(f"{manifest.name}: {manifest.folder}"), soft_wrap=True)


def window_facts(manifest: WindowManifest) -> dict[str, Any]:
    """Return what is printed for programs."""
    keep = {"sequence", "start_ms", "end_ms", "pane", "min_event_ms", "max_event_ms", "committed_at", "counts"}
    keep |= {"exposed_items", "exposure"}
    return manifest.model_dump(mode="json", include=keep) | {"window": str(manifest.name), "folder": manifest.folder}


def _row(manifest: WindowManifest) -> list[str]:
    counts = manifest.counts
    items = manifest.file(manifest.name.items()).rows
    numbers = [counts.events, counts.negatives, counts.duplicates, counts.late, items]
    return [
        str(manifest.sequence),
        minute(manifest.start_ms / 1000),
        str(manifest.pane),
        *(f"{number:,}" for number in numbers),
        minute(manifest.committed_at, "%H:%M:%S"),
    ]
