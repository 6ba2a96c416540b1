"""What ``weir inspect variants`` shows: which line is served to whom, and how the challenger compares."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from weir.cli.tables import minute, print_table
from weir.session import Session
from weir.text import plain

if TYPE_CHECKING:
    from weir.contracts import Store
    from weir.contracts.comparison import Comparison
    from weir.contracts.variants import Roles

__all__ = ["print_variants", "variant_facts"]


def variant_facts(store: "Store", names: Iterable[str]) -> dict[str, Any]:
    """Return the lines of a store and their roles, `names` being the variants of the settings.

    Raises `VariantError` where the roles are not clear, and `CorruptArtefactError`.
    """
    from weir.contracts.comparison import Comparison
    from weir.contracts.variants import Champion, lines, roles_in

    names = list(names)
    roles, champion = roles_in(store, names), Champion.read(store)
    # Without a challenger, what was found of the lines that the champion has replaced is still known.
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
    """Return what is known of a line; one that is neither champion nor challenger has no role."""
    from weir.contracts.variants import log_of

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
    from weir.contracts.comparison import MEASURES

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
    """Print a table of the lines, one of the comparison, and its verdicts in a sentence each."""
    title = f"lines of {session.store.path('')}"
    head = ["line", "role", "version", "commit", "items", "recall@20", "created"]
    print_table(session, title, head, [_row(one) for one in facts["variants"]])
    if (promotion := facts["promotion"]) is not None:
        when = minute(promotion["at"])
        _say(session, f"{promotion['variant']} was promoted by {promotion['by']} at {when} UTC: {promotion['verdict']}")
    compared = facts["comparison"]
    if facts["challenger"] is None:
        _say(session, f"{facts['champion']} has no challenger")
    elif compared is None:
        _say(session, f"{facts['challenger']} has not been compared yet: `weir monitor` does")
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
        _say(session, f"events that recall was not compared on: {skipped}")


def _row(one: dict[str, Any]) -> list[str]:
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


def _say(session: Session, text: str) -> None:
    session.out.print(plain(text), soft_wrap=True)
