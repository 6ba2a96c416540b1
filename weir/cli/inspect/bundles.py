"""The output of ``weir inspect bundles``, ``variants`` and ``served``."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from weir.cli.terminal.output import minute, print_facts, print_table
from weir.contracts import Store, WindowLog, WindowManifest, read_format
from weir.contracts.bundles.variants import variant_of
from weir.contracts.served_lists import hour_of, read_segment, served_files
from weir.errors import CommandError
from weir.serving.monitor.attribution import EVENT_COLUMNS, Attribution
from weir.serving.monitor.click_follower import bundle_items
from weir.session import Session
from weir.text import counted, plain

if TYPE_CHECKING:
    from weir.contracts import BundleLog, BundleManifest, Withdrawal
    from weir.contracts.bundles.variants import Comparison, Roles

__all__ = [
    "BundleFacts",
    "StoreFacts",
    "facts_of",
    "print_bundles",
    "print_served",
    "print_variants",
    "served_facts",
    "variant_facts",
]

_FIRST: Final = 64
"""Number of newest windows to read first; four times as many are read until they reach back far enough."""


# ruff: noqa: PLC0415 - imports wait until a command runs


@dataclass(frozen=True)
class BundleFacts:
    """A bundle in the store: its manifest (None with a `problem` if it is damaged), and what happened to it since.

    `current`: it is the promoted bundle of its line. `pinned`: it is pinned.
    """

    version: str
    manifest: "BundleManifest | None"
    problem: str | None
    withdrawal: "Withdrawal | None"
    current: bool
    pinned: bool

    @property
    def standing(self) -> str:
        """The bundle's state in a word: damaged, pinned, withdrawn, or the first word of the gate's verdict."""
        if self.problem is not None or self.manifest is None:
            return "damaged"
        if self.pinned:
            return "pinned"
        return "withdrawn" if self.withdrawal else self.manifest.verdict.partition(":")[0]

    @property
    def sentence(self) -> str:
        """The reason for the bundle's state (`standing`), as a sentence."""
        if self.problem is not None or self.manifest is None:
            return self.problem or ""
        return self.withdrawal.verdict if self.withdrawal else self.manifest.verdict

    def as_json(self) -> dict[str, Any]:
        """Return all facts for JSON, except the list of files."""
        said = {} if self.manifest is None else self.manifest.model_dump(mode="json", exclude={"files"})
        withdrawal = None if self.withdrawal is None else self.withdrawal.model_dump(mode="json")
        states = {"current": self.current, "pinned": self.pinned, "standing": self.standing}
        return {"version": self.version} | said | states | {"withdrawal": withdrawal, "problem": self.problem}


@dataclass(frozen=True)
class StoreFacts:
    """The newest bundles of a store, oldest first; `total` counts all bundles.

    `current` is the promoted version, and `remarks` are sentences about the whole store.
    """

    folder: str
    current: str
    remarks: list[str]
    bundles: list[BundleFacts]
    total: int


def facts_of(store: "Store", last: int | None, wanted: str | None = None) -> StoreFacts:
    """Return the facts of the newest `last` bundles (None: all) or of the version `wanted`, damaged ones included.

    Raises `CommandError` if the version does not exist.
    """
    from weir.contracts.bundles.variants import MAIN, lines

    remarks: list[str] = []
    found: list[BundleFacts] = []
    of_lines: dict[str, str | None] = {}
    for line in lines(store):
        current, facts = _of_line(store, line, wanted, remarks)
        of_lines[line] = current
        found += facts
    remarks += [f"current of {line}: {current}" for line, current in of_lines.items() if line != MAIN]
    if wanted is not None and not found:
        raise CommandError(f"{store.path('bundles')} holds no bundle {wanted}: old ones are retired, or it never was")
    found.sort(key=lambda facts: (facts.manifest.created_at if facts.manifest else 0.0, facts.version))
    return StoreFacts(
        store.path(""), of_lines[MAIN] or "none", remarks, found if last is None else found[-last:], len(found)
    )


def _of_line(store: "Store", line: str, wanted: str | None, remarks: list[str]) -> tuple[str | None, list[BundleFacts]]:
    """Return the promoted version and the bundles of a line (a variant's bundles); `wanted` selects one version.

    The line's pin, and damaged files, are appended to `remarks`.
    """
    from weir.contracts import CorruptArtefactError
    from weir.contracts.bundles.variants import MAIN, log_of

    log, current, pinned = log_of(store, line), None, None
    unpin = "weir promote --unpin" + ("" if line == MAIN else f" --variant {line}")
    try:
        current = log.current()
    except CorruptArtefactError as error:
        remarks.append(str(error))
    try:
        if pin := log.pin():
            pinned = pin.version
            remarks.append(f"{pin.sentence}; `{unpin}` removes it")
    except CorruptArtefactError as error:
        remarks.append(f"{error}; nothing is promoted until `{unpin}`")
    versions = [version for version in log.versions() if wanted in (None, version)]
    return current, [facts for version in versions if (facts := _facts(log, version, current, pinned))]


def _facts(log: "BundleLog", version: str, current: str | None, pinned: str | None) -> BundleFacts | None:
    """Return the facts of a bundle version; None if the bundle has just been retired."""
    from weir.contracts import CorruptArtefactError

    manifest, withdrawal, problem = None, None, None
    try:
        manifest, withdrawal = log.manifest(version), log.withdrawal(version)
    except FileNotFoundError:
        return None
    except CorruptArtefactError as error:
        problem = str(error)
    return BundleFacts(version, manifest, problem, withdrawal, version == current, version == pinned)


def print_bundles(session: Session, facts: StoreFacts, wanted: str | None) -> None:
    """Print a table of the bundles and why some are not promoted or, if a version is `wanted`, all facts about it."""
    for remark in facts.remarks:
        _say(session, remark)
    if not facts.bundles:
        session.out.print(f"{facts.folder} holds no bundle yet: `weir train` exports them")
        return
    shown, total = len(facts.bundles), counted(facts.total, "bundle")
    bundles = f"{shown:,} of {total}" if shown < facts.total else total
    print_table(
        session,
        f"{bundles if wanted is None else wanted} in {facts.folder}",
        ["version", "commit", "items", "changes", "index", "recall@20", "created", "gate"],
        [_bundle_row(bundle) for bundle in facts.bundles],
    )
    _say(session, f"current: {facts.current}")
    for bundle in facts.bundles:
        if bundle.standing != "promoted" or bundle.current:
            _say(session, f"{bundle.version}: {bundle.sentence}")
    if wanted is not None:
        print_facts(session, facts.bundles[0].as_json())


def _say(session: Session, text: str) -> None:
    """Print a line verbatim, without wrapping."""
    session.out.print(text, highlight=False, markup=False, soft_wrap=True)


def _bundle_row(bundle: BundleFacts) -> list[str]:
    manifest = bundle.manifest
    if manifest is None:
        return [bundle.version, *"------", bundle.standing]
    recall = manifest.evaluation.get("recall@20")
    return [
        manifest.version,
        str(manifest.trained_sequence),
        f"{manifest.items:,}",
        "complete" if manifest.parent is None else f"{manifest.changed:,} of {manifest.parent.version}",
        manifest.index.type,
        "-" if recall is None else f"{recall:.3f}",
        minute(manifest.created_at, "%H:%M:%S"),
        bundle.standing,
    ]


def variant_facts(store: "Store", names: Iterable[str]) -> dict[str, Any]:
    """Return the lines (bundles of a variant) of a store, their roles and their comparison, for JSON.

    `names` are the variants in the settings. Raises `VariantError` if the roles are ambiguous, and
    `CorruptArtefactError`.
    """
    from weir.contracts.bundles.variants import Champion, Comparison, lines, roles_in

    names = list(names)
    roles, champion = roles_in(store, names), Champion.read(store)
    # Without a challenger, show the comparison with the lines that the champion has replaced.
    others = [roles.challenger] if roles.challenger else champion.beaten
    made = [found for one in others if (found := Comparison.between(store, roles.champion, one)) is not None]
    if roles.challenger:
        made = [one for one in made if one.champion == roles.champion]
    comparison = max(made, key=lambda one: one.started_at, default=None)
    promotion = champion.model_dump(mode="json") if champion.at else None
    known = dict.fromkeys([*lines(store), *names])
    return {
        "champion": roles.champion,
        "challenger": roles.challenger,
        "promotion": promotion,
        "variants": [_line(store, line, roles) for line in known],
        "comparison": None if comparison is None else _compared(comparison),
    }


def _line(store: "Store", line: str, roles: "Roles") -> dict[str, Any]:
    """Return the facts of a line for JSON; its role is None unless it is champion or challenger."""
    from weir.contracts.bundles.variants import log_of

    log = log_of(store, line)
    version = log.current()
    manifest = log.manifest(version) if version else None
    role = {roles.champion: "champion", roles.challenger: "challenger"}.get(line)
    return {
        "variant": line,
        "role": role,
        "bundle": version,
        "trained_sequence": manifest.trained_sequence if manifest else None,
        "items": manifest.items if manifest else None,
        "recall@20": manifest.evaluation.get("recall@20") if manifest else None,
        "created_at": manifest.created_at if manifest else None,
    }


def _compared(comparison: "Comparison") -> dict[str, Any]:
    from weir.contracts.bundles.variants import MEASURES

    measures = []
    for measure in MEASURES:
        found = comparison.measured(measure)
        facts = {"measure": measure, "verdict": found.word, "champion": found.champion, "challenger": found.challenger}
        ends = {"difference_low": found.interval.low, "difference_high": found.interval.high}
        measures.append(facts | ends | {"units": found.units, "sentence": comparison.sentence(measure)})
    return {
        "champion": comparison.champion,
        "challenger": comparison.challenger,
        "level": 1 - comparison.alpha,
        "k": comparison.k,
        "started_at": comparison.started_at,
        "sequence": comparison.sequence,
        "windows": comparison.windows,
        "skipped": dict(comparison.skipped),
        "measures": measures,
    }


def print_variants(session: Session, facts: dict[str, Any]) -> None:
    """Print a table of the lines, a table of the comparison, and the verdicts."""
    title = f"lines of {session.store.path('')}"
    head = ["line", "role", "version", "commit", "items", "recall@20", "created"]
    print_table(session, title, head, [_variant_row(one) for one in facts["variants"]])
    if (promotion := facts["promotion"]) is not None:
        when = minute(promotion["at"])
        _say_plain(
            session, f"{promotion['variant']} was promoted by {promotion['by']} at {when} UTC: {promotion['verdict']}"
        )
    compared = facts["comparison"]
    if facts["challenger"] is None:
        _say_plain(session, f"{facts['champion']} has no challenger")
    elif compared is None:
        _say_plain(session, f"{facts['challenger']} has not been compared yet: `weir monitor` does")
    if compared is None:
        return
    skipped = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in compared["skipped"].items())
    title = f"{compared['challenger']} against {compared['champion']}: {compared['windows']:,} windows"
    rows = [
        [
            one["measure"],
            f"{one['champion']:.4f}",
            f"{one['challenger']:.4f}",
            f"{one['difference_low']:+.4f} to {one['difference_high']:+.4f}",
            f"{one['units']:,}",
            one["verdict"],
        ]
        for one in compared["measures"]
    ]
    interval = f"difference, {compared['level']:.0%} at any look"
    print_table(session, title, ["measure", "champion", "challenger", interval, "users", "verdict"], rows)
    if skipped:
        _say_plain(session, f"events that recall was not compared on: {skipped}")


def _variant_row(one: dict[str, Any]) -> list[str]:
    recall, created = one["recall@20"], one["created_at"]
    return [
        one["variant"],
        one["role"] or "-",
        one["bundle"] or "none",
        "-" if one["trained_sequence"] is None else str(one["trained_sequence"]),
        "-" if one["items"] is None else f"{one['items']:,}",
        "-" if recall is None else f"{recall:.3f}",
        "-" if created is None else minute(created, "%H:%M:%S"),
    ]


def _say_plain(session: Session, text: str) -> None:
    session.out.print(plain(text), soft_wrap=True)


def served_facts(store: Store, seconds: float, positions: int | None) -> dict[str, Any]:
    """Return the clicks on lists served in the last `seconds`, by bundle, variant and position, for JSON.

    `positions` is the number of positions, None: all.

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
    """Return the panes committed since `begin` (Unix time), in order, without reading all earlier commits."""
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
    """Print a table of bundles, a table of the first positions, and the outcomes of events with a token."""
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
