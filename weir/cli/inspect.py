"""``weir inspect``: what is in a store."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.command import command
from weir.cli.inspect_sketch import sketch
from weir.cli.options import JsonOutput, StoreOptions
from weir.cli.tables import minute, print_table
from weir.text import plain

if TYPE_CHECKING:
    from contracts import WindowManifest

__all__ = ["app"]

app = typer.Typer(help="Show the windows, bundles and sketches of a store.", no_args_is_help=True)

Last = Annotated[int, typer.Option("--last", "-n", min=1, help="Show only this many of the newest ones.")]


@app.command("windows")
@command
def windows(
    *,
    last: Last = 20,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """List the committed windows in commit order, with their counts."""
    from contracts import WindowLog

    session = options.open()
    manifests = WindowLog(session.store).newest(last)
    if json:
        session.print_json([_window_facts(manifest) for manifest in manifests])
        return
    if not manifests:
        session.out.print(plain(f"{session.store.path('')} holds no window yet: `weir ingest` commits them"))
        return
    length = timedelta(milliseconds=manifests[-1].end_ms - manifests[-1].start_ms)
    print_table(
        session,
        f"{manifests[-1].sequence + 1} commits in {session.store.path('')}, windows of {length}",
        ["commit", "window from (UTC)", "pane", "events", "negative", "duplicate", "late", "items", "committed"],
        [_window_row(manifest) for manifest in manifests],
    )


@app.command("bundles")
@command
def bundles(
    *,
    last: Last = 20,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """List the bundles of the store, which one is served or pinned, and what the gate decided."""
    from weir.cli.bundle_facts import facts_of, print_bundles

    session = options.open()
    facts = facts_of(session.store, last)
    if json:
        for remark in facts.remarks:
            session.notes.print(remark, highlight=False, markup=False, soft_wrap=True)
        session.print_json([bundle.as_json() for bundle in facts.bundles])
        return
    print_bundles(session, facts)


app.command("sketch")(command(sketch))


def _window_facts(manifest: "WindowManifest") -> dict[str, Any]:
    keep = {"sequence", "start_ms", "end_ms", "pane", "min_event_ms", "max_event_ms", "committed_at", "counts"}
    return manifest.model_dump(mode="json", include=keep) | {"window": str(manifest.name)}


def _window_row(manifest: "WindowManifest") -> list[str]:
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
