"""``weir inspect``: what is in a store."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from typing import Annotated, Any, Final

import typer

from weir.cli.age import age
from weir.cli.ages import AGES, seconds_of
from weir.cli.command import command
from weir.cli.options import JsonOutput, StoreOptions
from weir.cli.tables import print_table
from weir.errors import UsageError
from weir.session import Session
from weir.text import plain

__all__ = ["app"]

app = typer.Typer(
    help="Show the windows, bundles, variants, sketches and served lists of a store, and what age costs.",
    no_args_is_help=True,
)

app.command("age")(command(age))

Last = Annotated[
    int | None,
    typer.Option(
        "--last", "-n", min=1, help="Show only this many of the newest ones.", show_default="20; all with --json"
    ),
]
_ROWS: Final = 20
"""Of a table, where --last is not given."""
_POSITIONS: Final = 10


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
    from weir.cli.window_facts import print_windows, window_facts, windows_of

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
    from weir.cli.bundle_facts import facts_of, print_bundles

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

    The intervals are valid whenever one looks. `weir promote --variant NAME` serves a line to all.
    """
    from weir.cli.variant_facts import print_variants, variant_facts

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
    """Show what came of served lists: click-through and coverage by bundle, and click-through by position.

    Joins the lists that servers have kept (serving.served.share) with the committed events that carry their tokens.
    """
    from weir.cli.served_facts import print_served, served_facts

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


def _title(what: str, rows: list[list[str]], total: int) -> str:
    """Return the title of a table, with what is left out."""
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
