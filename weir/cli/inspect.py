"""``weir inspect``: what is in a store."""

# ruff: noqa: ARG001, PLC0415, PLR0917 - options are parameters; imports wait until a command runs

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.errors import guarded
from weir.cli.inspect_sketch import sketch
from weir.cli.options import Assign, ConfigFile, Debug, JsonOutput, StoreUrl
from weir.cli.session import open_session
from weir.cli.tables import print_table

if TYPE_CHECKING:
    from contracts import BundleManifest, WindowManifest

__all__ = ["app"]

app = typer.Typer(help="Look at the windows, bundles and sketches of a store.", no_args_is_help=True)

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
    print_table(
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
    print_table(
        session,
        f"{len(manifests)} bundles in {session.store.path('')}, current: {current or 'none'}",
        ["version", "commit", "items", "index", "recall@20", "created", "gate"],
        [_bundle_row(manifest) for manifest in manifests],
    )
    for manifest in manifests:
        if not manifest.promoted or manifest.version == current:
            session.out.print(f"{manifest.version}: {manifest.verdict}", highlight=False)


app.command("sketch")(guarded(sketch))


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
