"""Migration of a store from format 1 to format 2: the data files stay, the documents that list them are written again.

Format 1 kept a ``MANIFEST.json`` in each pane's folder, found by listing, and no checksums of documents.
``STORE.json`` is written when all else is done: killed before, the store still is of format 1 and the next migration
starts over; killed after, the next one removes what is left of the old format.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from weir.contracts.artefacts import MANIFEST
from weir.contracts.commit import Commit
from weir.contracts.commits import CommitLog, Head
from weir.contracts.documents import encode_document, encode_fields, write_document
from weir.contracts.errors import CorruptArtefactError, in_one_line
from weir.contracts.format import Layout, StoreFormat, read_format
from weir.contracts.redaction import LetterFile
from weir.contracts.source_span import SourceSpan
from weir.contracts.storage import FileEntry, Store, checksum
from weir.contracts.window import WindowManifest

__all__ = ["migrate"]

_WINDOWS: Final = f"windows/*/*/{MANIFEST}"
_WRITER: Final = "migration"
_REWRAPPED: Final = (f"bundles/*/{MANIFEST}", "evaluations/*/*.json", "monitor/*/*.json", "CLOCK.json")
_CURRENT: Final = "bundles/CURRENT"
"""It held the bare version."""

_DROPPED: Final = ("checkpoints", "state/histories")
"""Made again from the windows: checkpoints of format 1 hold pickled metadata, which is not opened."""


class _OldSpan(BaseModel):
    start: int
    stop: int
    resume: int
    size: int
    dead: int = 0


class _OldManifest(BaseModel):
    """A pane of format 1."""

    model_config = ConfigDict(extra="allow")

    sequence: int
    last_of_run: bool
    start_ms: int
    end_ms: int
    pane: int
    committed_at: float
    sketch: dict[str, str | int | float | bool]
    sources: dict[str, _OldSpan]


def migrate(store: Store, user_shards: int) -> int:
    """Bring a store to format 2 and return the number of panes; a store of format 2 is only cleaned up.

    Parameters
    ----------
    store
        No process may write to it meanwhile.
    user_shards
        What `pipeline.user_shards` was when the store was written.

    Raises
    ------
    CorruptArtefactError
        If a file of the old format is damaged or missing; nothing is lost then.
    """
    if _is_old(store):
        manifests = _manifests(store)
        _write_commits(store, manifests)
        _rewrap(store)
        layout = None
        if manifests:
            newest = manifests[-1]
            layout = Layout(window_ms=newest.end_ms - newest.start_ms, user_shards=user_shards, sketch=newest.sketch)
        store.create("STORE.json", encode_document(StoreFormat(layout=layout)))
    leftover = store.glob(_WINDOWS)
    for name in [*leftover, *_DROPPED] if leftover else []:
        store.remove(name)
    return len(leftover)


def _is_old(store: Store) -> bool:
    return not store.exists("STORE.json") or read_format(store) is None


def _manifests(store: Store) -> list[_OldManifest]:
    found = []
    for name in store.glob(_WINDOWS):
        try:
            manifest = _OldManifest.model_validate_json(store.read(name))
        except ValidationError as error:
            raise CorruptArtefactError(store.path(name), f"is not a manifest: {in_one_line(error)}") from error
        found.append(manifest)
    found.sort(key=lambda manifest: manifest.sequence)
    for expected, manifest in enumerate(found):
        if manifest.sequence != expected:
            raise CorruptArtefactError(store.path("windows"), f"has no manifest with sequence {expected}")
    return found


def _write_commits(store: Store, manifests: list[_OldManifest]) -> None:
    # An earlier migration may have been killed half-way.
    store.remove("commits")
    predecessor, last_commit, spans = "", dict[int, int](), dict[str, SourceSpan]()
    for number, manifest in enumerate(manifests):
        commit = _commit(manifest, predecessor, last_commit.get(manifest.start_ms, -1))
        last_commit[manifest.start_ms], spans = number, spans | commit.sources
        predecessor = _write(store, commit)
    letters = list(_letters(store))
    if letters:
        last = Commit(
            number=len(manifests),
            writer=_WRITER,
            predecessor=predecessor,
            committed_at=manifests[-1].committed_at if manifests else 0.0,
            sequence=len(manifests),
            sources={key: _with_letters(span, key, letters) for key, span in spans.items()},
            letters=tuple(file for file, _ in letters),
        )
        _write(store, last)
    if manifests or letters:
        number = len(manifests) - 1 + bool(letters)
        write_document(store, "commits/HEAD", Head(number=number, sequence=len(manifests)))


def _write(store: Store, commit: Commit) -> str:
    data = encode_document(commit)
    store.create(CommitLog.name(commit.number), data)
    return checksum(data)


def _commit(manifest: _OldManifest, predecessor: str, previous: int) -> Commit:
    fields: dict[str, Any] = manifest.model_dump(exclude={"sources", "last_of_run"})
    pane = WindowManifest(**fields | {"attempt": f"{manifest.pane:04d}", "previous": previous})
    return Commit(
        number=manifest.sequence,
        writer=_WRITER,
        predecessor=predecessor,
        committed_at=manifest.committed_at,
        sequence=manifest.sequence,
        panes=(pane,),
        sources={key: _span(span, manifest) for key, span in manifest.sources.items()},
    )


def _span(span: _OldSpan, manifest: _OldManifest) -> SourceSpan:
    """Rows between `start` and `resume` were accounted for only when the last window of the run was committed."""
    resume = span.resume if manifest.last_of_run else min(span.start, span.resume)
    return SourceSpan(**span.model_dump() | {"resume": resume})


def _letters(store: Store) -> Iterator[tuple[LetterFile, int]]:
    """Yield the files of dead letters, each with the highest position in it."""
    for name in sorted(store.find("dead-letters")):
        data = store.read(name)
        try:
            found = [json.loads(line) for line in data.splitlines()]
            reasons = dict(Counter(str(letter["reason"]) for letter in found))
            last = max(int(letter["position"]) for letter in found)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptArtefactError(store.path(name), f"is not a file of dead letters: {error}") from error
        entry = FileEntry(name=name, size=len(data), checksum=checksum(data), rows=len(found))
        partition = name.removeprefix("dead-letters/").rpartition("/")[0]
        yield LetterFile(**entry.model_dump(), partition=partition, reasons=reasons), last


def _with_letters(span: SourceSpan, key: str, letters: list[tuple[LetterFile, int]]) -> SourceSpan:
    reaching = {file.name: last for file, last in letters if file.partition == key and last >= span.resume}
    return span.model_copy(update={"letters": reaching})


def _rewrap(store: Store) -> None:
    """Give documents of format 1 their checksums."""
    for name in (name for pattern in _REWRAPPED for name in store.glob(pattern)):
        data = store.read(name)
        if data.startswith(b'{"checksum"'):
            continue  # by an earlier migration that was killed
        try:
            fields = json.loads(data)
        except ValueError as error:
            raise CorruptArtefactError(store.path(name), f"is not JSON: {error}") from error
        store.write(name, encode_fields(json.dumps(fields, indent=1).encode()))
    if store.exists(_CURRENT) and not (data := store.read(_CURRENT)).startswith(b"{"):
        fields = {"version": data.decode(errors="replace").strip()}
        store.write(_CURRENT, encode_fields(json.dumps(fields, indent=1).encode()))
