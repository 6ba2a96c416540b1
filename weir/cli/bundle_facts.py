"""What ``weir inspect bundles`` shows: the bundles, which one is served, and why."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.cli.tables import minute, print_facts, print_table
from weir.errors import CommandError
from weir.session import Session
from weir.text import counted

if TYPE_CHECKING:
    from weir.contracts import BundleLog, BundleManifest, Store, Withdrawal

__all__ = ["BundleFacts", "StoreFacts", "facts_of", "print_bundles"]


@dataclass(frozen=True)
class BundleFacts:
    """One bundle: its manifest unless that is damaged, and what happened to it since."""

    version: str
    manifest: "BundleManifest | None"
    problem: str | None
    withdrawal: "Withdrawal | None"
    current: bool
    pinned: bool

    @property
    def standing(self) -> str:
        """Its state in one word: the first one of the verdict unless something else happened."""
        if self.problem is not None or self.manifest is None:
            return "damaged"
        if self.pinned:
            return "pinned"
        return "withdrawn" if self.withdrawal else self.manifest.verdict.partition(":")[0]

    @property
    def sentence(self) -> str:
        """Why."""
        if self.problem is not None or self.manifest is None:
            return self.problem or ""
        return self.withdrawal.verdict if self.withdrawal else self.manifest.verdict

    def as_json(self) -> dict[str, Any]:
        """Return everything but the files."""
        said = {} if self.manifest is None else self.manifest.model_dump(mode="json", exclude={"files"})
        withdrawal = None if self.withdrawal is None else self.withdrawal.model_dump(mode="json")
        states = {"current": self.current, "pinned": self.pinned, "standing": self.standing}
        return {"version": self.version} | said | states | {"withdrawal": withdrawal, "problem": self.problem}


@dataclass(frozen=True)
class StoreFacts:
    """The newest bundles, oldest first, how many there are in `total`, and remarks about the store."""

    folder: str
    current: str
    remarks: list[str]
    bundles: list[BundleFacts]
    total: int


def facts_of(store: "Store", last: int | None, wanted: str | None = None) -> StoreFacts:
    """Read the newest bundles, None for all, or the one with a version; a damaged one is reported among them.

    Raises `CommandError` where there is no such version.
    """
    from weir.contracts.variants import MAIN, lines

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
    """Return which bundle of a line is promoted, and its bundles; adds what is remarkable to the remarks."""
    from weir.contracts import CorruptArtefactError
    from weir.contracts.variants import MAIN, log_of

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
    """Return what is known of a bundle; None if it has just been retired."""
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
    """Print a table of the bundles, and why a bundle is not promoted; of one that is asked for, all that is known."""
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
        [_row(bundle) for bundle in facts.bundles],
    )
    _say(session, f"current: {facts.current}")
    for bundle in facts.bundles:
        if bundle.standing != "promoted" or bundle.current:
            _say(session, f"{bundle.version}: {bundle.sentence}")
    if wanted is not None:
        print_facts(session, facts.bundles[0].as_json())


def _say(session: Session, text: str) -> None:
    """Print a line as it is, however narrow the terminal."""
    session.out.print(text, highlight=False, markup=False, soft_wrap=True)


def _row(bundle: BundleFacts) -> list[str]:
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
