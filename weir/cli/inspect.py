"""``weir inspect``: what is in a store."""

# ruff: noqa: ARG001, PLC0415, PLR0917 - options are parameters; imports wait until a command runs

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli.errors import CommandError, guarded
from weir.cli.options import Assign, ConfigFile, Debug, JsonOutput, StoreUrl
from weir.cli.session import Session, open_session

if TYPE_CHECKING:
    from contracts import BundleManifest, WindowManifest

__all__ = ["app"]

app = typer.Typer(help="Look at the windows, bundles and sketches of a store.", no_args_is_help=True)

_NUMBERS: Final = {
    *("commit", "pane", "events", "negative", "duplicate", "late", "items"),
    *("recall@20", "rank", "count", "estimate"),
}
"""Columns that stand to the right."""

Last = Annotated[int, typer.Option("--last", "-n", min=1, help="Show only the newest ones: how many.")]


@app.command("windows")
@guarded
def windows(
    last: Last = 20,
    config: ConfigFile = None,
    store: StoreUrl = None,
    assign: Assign = None,
    json: JsonOutput = False,
    debug: Debug = False,
) -> None:
    """List the committed windows in commit order, with what was counted."""
    from contracts import WindowLog

    session = open_session(config, store, assign)
    manifests = WindowLog(session.store).committed()
    if json:
        session.print_json([_window_facts(manifest) for manifest in manifests[-last:]])
        return
    if not manifests:
        session.out.print(f"{session.store.path('')} holds no window yet: `weir ingest` commits them")
        return
    _print_table(
        session,
        f"{len(manifests)} commits in {session.store.path('')}, windows of {_length(manifests[-1])}",
        ["commit", "window from (UTC)", "pane", "events", "negative", "duplicate", "late", "items", "committed"],
        [_window_row(manifest) for manifest in manifests[-last:]],
    )


@app.command("bundles")
@guarded
def bundles(
    last: Last = 20,
    config: ConfigFile = None,
    store: StoreUrl = None,
    assign: Assign = None,
    json: JsonOutput = False,
    debug: Debug = False,
) -> None:
    """List the bundles that are kept, which is promoted, and what the gate said."""
    from contracts import BundleLog

    session = open_session(config, store, assign)
    log = BundleLog(session.store)
    current = log.current()
    manifests = [log.manifest(version) for version in log.versions()[-last:]]
    if json:
        session.print_json(
            [m.model_dump(mode="json", exclude={"files"}) | {"current": m.version == current} for m in manifests]
        )
        return
    if not manifests:
        session.out.print(f"{session.store.path('')} holds no bundle yet: `weir train` exports them")
        return
    _print_table(
        session,
        f"{len(manifests)} bundles in {session.store.path('')}, current: {current or 'none'}",
        ["version", "commit", "items", "index", "recall@20", "created", "gate"],
        [_bundle_row(manifest) for manifest in manifests],
    )
    for manifest in manifests:
        if not manifest.promoted or manifest.version == current:
            session.out.print(f"{manifest.version}: {manifest.verdict}", highlight=False)


@app.command("sketch")
@guarded
def sketch(
    window: Annotated[
        int | None, typer.Option("--window", "-w", min=0, help="Commit number of the window.", show_default="newest")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Most frequent items to list.")] = 10,
    config: ConfigFile = None,
    store: StoreUrl = None,
    assign: Assign = None,
    json: JsonOutput = False,
    debug: Debug = False,
) -> None:
    """Show a window's frequency sketch, and its estimates against the exact counts."""
    session = open_session(config, store, assign)
    facts = _sketch_facts(session, window, top)
    if json:
        session.print_json(facts)
        return
    shown = {name: value for name, value in facts.items() if name != "top"}
    session.out.print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items()))
    rows = [
        [str(n), item["item_id"], str(item["count"]), f"{item['estimate']:.1f}"]
        for n, item in enumerate(facts["top"], 1)
    ]
    _print_table(session, "most frequent items", ["rank", "item", "count", "estimate"], rows)


def _sketch_facts(session: Session, window: int | None, top: int) -> dict[str, Any]:
    import numpy as np

    import sketches
    from contracts import WindowLog, columns

    log = WindowLog(session.store)
    known = {manifest.sequence: manifest for manifest in log.committed()}
    if not known:
        raise CommandError(f"{session.store.path('')} holds no window yet: `weir ingest` commits them")
    number = max(known) if window is None else window
    if number not in known:
        raise CommandError(f"there is no commit {number}; there are {min(known)} to {max(known)}")
    items = log.items(known[number])
    estimator = sketches.load(log.sketch(known[number]))
    counts = items[columns.COUNT].to_numpy()
    estimates = estimator.estimate(items[columns.ITEM_KEY].to_numpy())
    error = np.abs(np.log(estimates) - np.log(counts)) @ counts / max(counts.sum(), 1)
    best = np.argsort(-counts, kind="stable")[:top]
    ids = items[columns.ITEM_ID]
    return {
        "window": str(known[number].name),
        **known[number].sketch,
        "events": int(counts.sum()),
        "items": len(counts),
        "mean_log_error": round(float(error), 6),
        "top": [
            {"item_id": ids[row].as_py(), "count": int(counts[row]), "estimate": float(estimates[row])}
            for row in best.tolist()
        ],
    }


def _window_facts(manifest: "WindowManifest") -> dict[str, Any]:
    keep = {"sequence", "start_ms", "end_ms", "pane", "min_event_ms", "max_event_ms", "committed_at", "counts"}
    return manifest.model_dump(mode="json", include=keep) | {"window": str(manifest.name)}


def _window_row(manifest: "WindowManifest") -> list[str]:
    counts = manifest.counts
    items = manifest.file(manifest.name.items()).rows
    numbers = [counts.events, counts.negatives, counts.duplicates, counts.late, items]
    return [
        str(manifest.sequence),
        _minute(manifest.start_ms / 1000),
        str(manifest.pane),
        *(f"{number:,}" for number in numbers),
        _minute(manifest.committed_at, "%H:%M:%S"),
    ]


def _length(manifest: "WindowManifest") -> str:
    return str(timedelta(milliseconds=manifest.end_ms - manifest.start_ms))


def _bundle_row(manifest: "BundleManifest") -> list[str]:
    recall = manifest.evaluation.get("recall@20")
    return [
        manifest.version,
        str(manifest.trained_sequence),
        f"{manifest.items:,}",
        manifest.index.type,
        "-" if recall is None else f"{recall:.3f}",
        _minute(manifest.created_at, "%H:%M:%S"),
        "promoted" if manifest.promoted else "held",
    ]


def _minute(seconds: float, form: str = "%Y-%m-%d %H:%M") -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def _print_table(session: Session, title: str, head: list[str], rows: list[list[str]]) -> None:
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=None, header_style="bold", collapse_padding=True, pad_edge=False
    )
    for name in head:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=name != "item")
    for row in rows:
        table.add_row(*row)
    session.out.print(table)
