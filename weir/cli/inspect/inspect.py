"""The commands of ``weir inspect``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli.terminal.command import command
from weir.cli.terminal.options import AGES, JsonOutput, StoreOptions, seconds_of
from weir.cli.terminal.output import print_table
from weir.errors import UsageError
from weir.session import Session
from weir.text import plain, span

if TYPE_CHECKING:
    from weir.age import AgeFacts

__all__ = ["age", "app"]

Last = Annotated[
    int | None,
    typer.Option(
        "--last", "-n", min=1, help="Show only this many of the newest ones.", show_default="20; all with --json"
    ),
]
_ROWS: Final = 20
"""Rows of a table without --last."""
_POSITIONS: Final = 10
"""Positions in a table without --positions."""

app = typer.Typer(
    help="Show the windows, bundles, variants, sketches and served lists of a store, and what age costs.",
    no_args_is_help=True,
)


# ruff: noqa: PLC0415 - imports wait until a command runs


def age(
    *,
    windows: Annotated[int, typer.Option(min=1, help="Newest windows to ask about.")] = 20,
    ages: Annotated[int, typer.Option(min=1, help="Oldest age, in windows.")] = 10,
    events: Annotated[int, typer.Option(min=1, help="Events of each window, at most.")] = 500,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Cut-off of recall, items.")] = 20,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", file_okay=False, help="Folder for the report.", show_default="none")
    ] = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Ask kept bundles about later windows: how much recall older bundles and older histories lose.

    Keep more bundles to look further back: trainer.bundles_kept, trainer.rollback_window_seconds.
    """
    from weir.age import age_facts
    from weir.serving.monitor.aged import Sampling

    if out is not None:
        # Imported before the long work, because matplotlib may be missing.
        from weir.age_report import write_report

    session = options.open()
    facts = age_facts(session.store, Sampling(windows, ages, events, k, session.settings.monitor.seed))
    page = None if out is None else write_report(out, facts)
    if json:
        session.print_json(facts)
        return
    _print(session, facts)
    if page is not None:
        session.out.print(plain(f"the report: {page}"), soft_wrap=True)


def _print(session: "Session", facts: "AgeFacts") -> None:
    if not facts.points:
        where, more = (
            session.store.path(""),
            "trainer.bundles_kept, or trainer.rollback_window_seconds, keeps more of them",
        )
        said = f"{where} keeps no bundle with a window after it: nothing to compare; {more}"
        session.out.print(plain(said), soft_wrap=True)
    head = ["older", "windows", "up to", "events", "recall", "freshest", "difference", "95 %"]
    length = facts.window_seconds or 0.0
    rows = [
        [
            one.aged,
            str(one.windows),
            span(one.windows * length),
            f"{one.cases:,}",
            f"{one.recall:.4f}",
            f"{one.freshest:.4f}",
            f"{one.difference:+.4f}",
            f"{one.low:+.4f} to {one.high:+.4f}",
        ]
        for one in facts.points
    ]
    if rows:
        print_table(session, f"recall@{facts.k} by age, {facts.windows} windows of {span(length)}", head, rows)
    rows = [
        [span(one.times * length), f"{one.cases:,}", f"{one.difference:+.4f}", f"{one.low:+.4f} to {one.high:+.4f}"]
        for one in facts.longer
    ]
    if rows:
        print_table(session, "with longer windows", ["windows of", "events", "difference", "95 %"], rows)
    rows = [
        [
            one.of,
            "older" if one.up_to is None else span(one.up_to),
            f"{one.cases:,}",
            f"{one.recall:.4f}",
            f"{one.low:.4f} to {one.high:.4f}",
        ]
        for one in facts.served
    ]
    if rows:
        print_table(session, "as served, by age", ["age of", "up to", "events", "recall", "95 %"], rows)


app.command("age")(command(age))


@app.command("windows")
@command
def windows(
    *,
    wanted: Annotated[
        str | None,
        typer.Argument(
            metavar="WINDOW", help="A window's start, or a pane's number, name or folder.", show_default="all"
        ),
    ] = None,
    last: Last = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """List the panes of the committed windows in commit order, with their counts."""
    from weir.cli.inspect.windows import print_windows, window_facts, windows_of

    session = options.open()
    manifests = windows_of(session.store, wanted, last or (None if json else _ROWS))
    if json:
        session.print_json([window_facts(manifest) for manifest in manifests])
    else:
        print_windows(session, manifests, wanted)


@app.command("bundles")
@command
def bundles(
    *,
    wanted: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="One bundle, with all its facts.", show_default="all")
    ] = None,
    last: Last = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """List the bundles of the store, which one is served or pinned, and what the gate decided."""
    from weir.cli.inspect.bundles import facts_of, print_bundles

    session = options.open()
    facts = facts_of(session.store, last or (None if json else _ROWS), wanted)
    if json:
        for remark in facts.remarks:
            session.notes.print(remark, highlight=False, markup=False, soft_wrap=True)
        session.print_json([bundle.as_json() for bundle in facts.bundles])
        return
    print_bundles(session, facts, wanted)


@app.command("variants")
@command
def variants(
    *,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Show champion and challenger (trainer.variants), and which of them is better so far.

    The intervals stay valid however often one looks. `weir promote --variant NAME` serves a line to all.
    """
    from weir.cli.inspect.bundles import print_variants, variant_facts

    session = options.open()
    facts = variant_facts(session.store, session.settings.trainer.variants)
    if json:
        session.print_json(facts)
    else:
        print_variants(session, facts)


@app.command("served")
@command
def served(
    *,
    since: Annotated[str, typer.Option(metavar="AGE", help=f"Lists served since so long ago: {AGES}.")] = "24h",
    positions: Annotated[
        int | None,
        typer.Option(min=1, help="Positions to show, from the first item on.", show_default="10; all with --json"),
    ] = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Show the results of served lists: click-through and coverage by bundle, and click-through by position.

    Joins the lists that servers have kept (serving.served.share) with the committed events that carry their tokens.
    """
    from weir.cli.inspect.bundles import print_served, served_facts

    session = options.open()
    facts = served_facts(session.store, seconds_of(since, "--since"), positions if json else None)
    if json:
        session.print_json(facts)
    else:
        print_served(session, facts, since, positions or _POSITIONS)


@app.command("sketch")
@command
def sketch(
    *,
    wanted: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH_OR_WINDOW",
            help="Sketch file, or a window's start, or a pane's number, name or folder.",
            show_default="newest window",
        ),
    ] = None,
    window: Annotated[
        int | None, typer.Option("--window", "-w", min=0, help="Number of the pane.", show_default="newest")
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
    from weir.cli.inspect.windows import compare as compared
    from weir.cli.inspect.windows import describe, find

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


def _title(what: str, rows: list[list[str]], total: int) -> str:
    """Return the title of a table; if rows are left out, the title says how many are shown of how many."""
    return what if len(rows) == total else f"{what}: {len(rows):,} of {total:,}"


def _print_one(session: Session, facts: dict[str, Any]) -> None:
    _print_facts(session, facts)
    if not facts["top"]:
        return
    rows = [
        [str(n), item["item_id"], str(item["count"]), f"{item['estimate']:.1f}"]
        for n, item in enumerate(facts["top"], 1)
    ]
    print_table(
        session, _title("most frequent items", rows, facts["items"]), ["rank", "item", "count", "estimate"], rows
    )


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
    title = _title("largest changes of an item's share", rows, difference["changed_items"])
    print_table(session, title, ["item", "before", "after", "change"], rows)


def _print_facts(session: Session, facts: dict[str, Any]) -> None:
    shown = {name: value for name, value in facts.items() if name != "top"}
    session.out.print(plain(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())))
