"""``weir inspect``: what is in a store."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.command import command
from weir.cli.options import JsonOutput, StoreOptions
from weir.cli.tables import minute, print_table
from weir.errors import UsageError
from weir.session import Session
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


@app.command("sketch")
@command
def sketch(
    *,
    wanted: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH_OR_WINDOW",
            help="Sketch file, or a window's folder, name or commit number.",
            show_default="newest window",
        ),
    ] = None,
    window: Annotated[
        int | None, typer.Option("--window", "-w", min=0, help="Commit number of the window.", show_default="newest")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="PATH_OR_WINDOW", help="Compare with another sketch.", show_default="none"),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Items to list: the most frequent, or the most changed.")] = 10,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Show a frequency sketch: parameters, totals, heaviest items, fill and error; or compare two."""
    from weir.cli.sketch_facts import compare as compared
    from weir.cli.sketch_facts import describe, find

    if wanted is not None and window is not None:
        raise UsageError("give either PATH_OR_WINDOW or --window, not both")
    session = options.open()
    subject = find(session.store, wanted if window is None else str(window))
    if compare is None:
        facts = describe(subject, top)
        session.print_json(facts) if json else _print_one(session, facts)
        return
    other = find(session.store, compare)
    sides = [describe(one, 0) for one in (subject, other)]
    difference = compared(subject, other, top)
    if json:
        session.print_json({"sketches": sides, **difference})
    else:
        _print_two(session, sides, difference)


def _print_one(session: Session, facts: dict[str, Any]) -> None:
    _print_facts(session, facts)
    if not facts["top"]:
        return
    rows = [
        [str(n), item["item_id"], str(item["count"]), f"{item['estimate']:.1f}"]
        for n, item in enumerate(facts["top"], 1)
    ]
    print_table(session, "most frequent items", ["rank", "item", "count", "estimate"], rows)


def _print_two(session: Session, sides: list[dict[str, Any]], difference: dict[str, Any]) -> None:
    for side in sides:
        _print_facts(session, side)
    for name, (before, after) in difference["differing_parameters"].items():
        session.out.print(plain(f"{name} differs: {before} and {after}"))
    distance, over = difference["distance"], difference["distance_over"]
    shown = "unknown" if distance is None else f"{distance:.4f}, over {over} (0: equal shares, 1: nothing in common)"
    session.out.print(f"Jensen-Shannon distance {shown}", highlight=False)
    if not difference["changes"]:
        return
    rows = [
        [item["item_id"], *(f"{share:.4%}" for share in item["shares"]), f"{item['change']:+.4%}"]
        for item in difference["changes"]
    ]
    print_table(session, "largest changes of an item's share", ["item", "before", "after", "change"], rows)


def _print_facts(session: Session, facts: dict[str, Any]) -> None:
    shown = {name: value for name, value in facts.items() if name != "top"}
    session.out.print(plain(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())))
