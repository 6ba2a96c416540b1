"""What ``weir inspect served`` shows: served lists joined with the events that name them, all from what is stored."""

import time
from typing import Any, Final

from weir.cli.tables import print_table
from weir.contracts import Store, WindowLog, WindowManifest, read_format
from weir.contracts.served import hour_of, read_segment, served_files
from weir.contracts.variants import variant_of
from weir.serving.monitor.attribution import EVENT_COLUMNS, Attribution
from weir.serving.monitor.clicks import bundle_items
from weir.session import Session
from weir.text import plain

__all__ = ["print_served", "served_facts"]

_FIRST: Final = 64
"""So many of the newest windows are looked at first, and four times as many while that does not reach far enough."""


def served_facts(store: Store, seconds: float, positions: int | None) -> dict[str, Any]:
    """Return what came of the lists served in the last so many seconds, by bundle and for so many positions; None: all.

    Raises `CorruptArtefactError`.
    """
    begin, found = time.time() - seconds, read_format(store)
    attribution = Attribution(lambda segment: read_segment(store, segment), found.key_secret if found else "")
    files = [file for file in served_files(store) if file.segment >= hour_of(begin)]
    for file in files:
        lists = read_segment(store, file.segment)
        if lists is not None:
            attribution.show(file.segment, lists)
    windows = WindowLog(store)
    for manifest in _committed_since(windows, begin) if files else ():
        attribution.join(windows.all_examples(manifest, EVENT_COLUMNS))
    return {
        "files": len(files),
        "lists": sum(shown.lists for shown in attribution.bundles.values()),
        "events": dict(sorted(attribution.outcomes.items())),
        "bundles": [_bundle(store, version, attribution) for version in attribution.bundles],
        "variants": [
            {"variant": variant, "lists": count, "clicked_lists": clicked, "click_through": clicked / count}
            for variant, (count, clicked) in attribution.by_variant().items()
        ],
        "positions": _positions(attribution, positions),
    }


def _committed_since(windows: WindowLog, begin: float) -> list[WindowManifest]:
    """Return the panes committed since a moment, in order; commits before them are not read one by one."""
    count = _FIRST
    while True:
        newest = windows.newest(count)
        if len(newest) < count or newest[0].committed_at < begin:
            return [manifest for manifest in newest if manifest.committed_at >= begin]
        count *= 4


def _bundle(store: Store, version: str, attribution: Attribution) -> dict[str, Any]:
    shown, items = attribution.bundles[version], bundle_items(store, version)
    return {
        "bundle": version,
        "variant": variant_of(version),
        "lists": shown.lists,
        "fallbacks": shown.fallbacks,
        "clicked_lists": shown.clicked_lists,
        "click_through": shown.click_through,
        "items_shown": len(shown.items),
        "coverage": len(shown.items) / items if items else None,
    }


def _positions(attribution: Attribution, most: int | None) -> list[dict[str, Any]]:
    return [
        {"position": position, "shown": count, "clicked": clicks, "click_through": clicks / count}
        for position, (count, clicks) in enumerate(attribution.by_position()[:most], start=1)
    ]


def print_served(session: Session, facts: dict[str, Any], since: str, positions: int) -> None:
    """Print a table of bundles, one of the first positions, and what became of events with a token."""
    where = session.store.path("")
    if not facts["lists"]:
        rest = "servers keep the share serving.served.share of their answers"
        session.out.print(plain(f"{where} holds no lists served in the last {since}: {rest}"), soft_wrap=True)
        return
    rows = [
        [
            one["bundle"],
            f"{one['lists']:,}",
            f"{one['clicked_lists']:,}",
            f"{one['click_through']:.2%}",
            f"{one['items_shown']:,}",
            "-" if one["coverage"] is None else f"{one['coverage']:.1%}",
            f"{one['fallbacks'] / one['lists']:.1%}",
        ]
        for one in facts["bundles"]
    ]
    title = f"{facts['lists']:,} lists served in the last {since}, in {where}"
    head = ["version", "lists", "clicked", "click-through", "items", "coverage", "popular only"]
    print_table(session, title, head, rows)
    if len(facts["variants"]) > 1:
        rows = [
            [one["variant"], f"{one['lists']:,}", f"{one['clicked_lists']:,}", f"{one['click_through']:.2%}"]
            for one in facts["variants"]
        ]
        print_table(session, "by line", ["line", "lists", "clicked", "click-through"], rows)
    rows = [
        [str(one["position"]), f"{one['shown']:,}", f"{one['clicked']:,}", f"{one['click_through']:.2%}"]
        for one in facts["positions"]
    ]
    last = len(rows)
    title = "by position" if last <= positions else f"by position: the first {positions} of {last}"
    rows = rows[:positions]
    print_table(session, title, ["position", "shown", "clicked", "click-through"], rows)
    named = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in facts["events"].items()) or "none"
    session.out.print(plain(f"positive events with a token: {named}"), soft_wrap=True)
