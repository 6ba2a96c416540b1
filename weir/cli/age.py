"""``weir inspect age``: what the age of a bundle and of histories costs in recall."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.options import JsonOutput, StoreOptions
from weir.cli.tables import print_table
from weir.text import plain, span

if TYPE_CHECKING:
    from weir.age.facts import AgeFacts
    from weir.session import Session

__all__ = ["age"]


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
    """Ask kept bundles about windows that came after them: how much recall older bundles and histories lose.

    More bundles reach further back: trainer.bundles_kept, trainer.rollback_window_seconds.
    """
    from weir.age.facts import age_facts
    from weir.serving.monitor.aged import Sampling

    if out is not None:
        # Before the work, which takes longer: it may be missing.
        from weir.age.report import write_report

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
