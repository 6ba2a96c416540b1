"""Files without forgotten users: each is written beside the one that it will replace, and nothing else is touched."""

import base64
import secrets
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from weir.contracts import (
    FileEntry,
    HistoryFile,
    ItemKeys,
    Label,
    LetterFile,
    LocalCache,
    Records,
    Store,
    UserFile,
    UserKeys,
    UserRows,
    UserTable,
    WindowCounts,
    WindowManifest,
    WindowName,
    columns,
    write_user_file,
)
from weir.contracts.artefacts import read_column, read_table, write_table
from weir.contracts.redaction import RedactedPane, RewrittenLetters
from weir.contracts.user_histories import open_file
from weir.pipelines.forgotten import Forgotten, texts_of
from weir.pipelines.transforms.dead_letters import read_dead_letters
from weir.readers import DeadLetter
from weir.sketches import ExactCounter, load

__all__ = ["letters_without", "named_in_letter", "pane_without", "users_file_without"]

REDACTED: Final = "the text named a user who has been forgotten"
_ROWS: Final = 4096
"""Users of a file that are in memory at once."""


def pane_without(
    store: Store, pane: WindowManifest, users: Mapping[int, UserKeys], run: str
) -> tuple[RedactedPane, UserKeys] | None:
    """Write a pane's files without the rows of some users, and return it with those it held; None if it held none.

    Only the column of users is read first. `users` are the keys by user shard, ascending. Raises
    `CorruptArtefactError`.
    """
    held = {shard: found for shard in users if len(found := _held(store, pane, shard, users[shard]))}
    if not held:
        return None
    # Panes of one window lie side by side.
    attempt = f"{run}p{pane.pane}"
    folder = pane.name.folder(attempt)
    keys = UserKeys(np.concatenate(list(held.values())))
    examples = {entry.name: shard for shard, entry in pane.examples.items()}
    files, counts = [], WindowCounts()
    for entry in pane.files:
        if (shard := examples.get(entry.name, -1)) in held:
            rows = read_table(store, pane.folder, entry)
            is_theirs = np.isin(rows[columns.USER_KEY].to_numpy(), held[shard])
            counts += _counts(rows[columns.LABEL].to_numpy()[is_theirs])
            if not is_theirs.all():
                name = WindowName.examples(shard, secrets.token_hex(4))
                files.append(write_table(store, f"{folder}/{name}", rows.filter(pa.array(~is_theirs))))
        else:
            data = store.read_verified(pane.folder, entry)
            if entry.name == WindowName.user_sketch():
                data = _sketch_without(data, keys)
            files.append(store.write(f"{folder}/{entry.name}", data, rows=entry.rows))
    return RedactedPane(pane=_manifest(pane, attempt, files, counts), replaces=pane.folder), keys


def _held(store: Store, pane: WindowManifest, shard: int, users: UserKeys) -> UserKeys:
    """Return those of the users, ascending, who have rows in a shard of a pane."""
    entry = pane.examples.get(shard)
    if entry is None:
        return UserKeys(np.empty(0, np.int64))
    return UserKeys(np.intersect1d(read_column(store, pane.folder, entry, columns.USER_KEY).to_numpy(), users))


def _counts(labels: np.ndarray[tuple[int], np.dtype[np.int8]]) -> WindowCounts:
    positives, negatives = (int((labels == label).sum()) for label in (Label.POSITIVE, Label.NEGATIVE))
    return WindowCounts(events=len(labels), positives=positives, negatives=negatives)


def _manifest(pane: WindowManifest, attempt: str, files: list[FileEntry], gone: WindowCounts) -> WindowManifest:
    """Return the manifest of the rows that are left; what the run had counted besides stays as it is."""
    left = {name: getattr(pane.counts, name) - getattr(gone, name) for name in ("events", "positives", "negatives")}
    counts = pane.counts.model_copy(update=left)
    return pane.model_copy(update={"attempt": attempt, "files": tuple(files), "counts": counts})


def _sketch_without(data: bytes, users: UserKeys) -> bytes:
    """Return a sketch of users that names none of these; one with hashed cells names nobody."""
    sketch = load(data)
    if not isinstance(sketch, ExactCounter):
        return data
    keys, counts = sketch.items()
    left, found = ~np.isin(keys, users), ExactCounter()
    found.update(keys[left], counts[left])
    return found.to_bytes()


def users_file_without(
    store: Store, file: HistoryFile, cache: LocalCache, users: UserKeys, run: str
) -> tuple[HistoryFile | None, UserKeys] | None:
    """Write a file of users without some, and return it with those it held; None if it held none.

    The file is None where nobody is left. Raises `CorruptArtefactError`.
    """
    opened = open_file(store, file, cache)
    places = np.array([opened.place(user) for user in users.tolist()], np.int64)
    held, gone = UserKeys(users[places >= 0]), np.sort(places[places >= 0])
    if not len(held):
        return None
    if len(gone) == opened.count:
        return None, held
    blocks = ((start, min(start + _ROWS, opened.count)) for start in range(0, opened.count, _ROWS))
    going = UserTable.of_shard((opened,), opened.length).find(held).seen(np.arange(len(held)))
    seen = sum(int(opened.seen_counts(*block).sum()) for block in blocks) - len(going.items)
    name = HistoryFile.path(file.shard, run, secrets.token_hex(4))
    entry = write_user_file(
        store, name, _others(opened, gone), users=opened.count - len(gone), seen=seen, length=opened.length,
        bound=opened.bound,
    )  # fmt: skip
    return HistoryFile.of(name, entry, file.shard, file.length, (file.name,)), held


def _others(file: UserFile, gone: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[UserRows]:
    table = UserTable.of_shard((file,), file.length)
    for start in range(0, file.count, _ROWS):
        users = file.users(start, min(start + _ROWS, file.count))
        kept = np.setdiff1d(np.arange(len(users)), gone - start)
        if len(kept):
            found = table.stretch(users, start)
            totals, items, times = found.records()
            records = Records(totals[kept], ItemKeys(items[kept]), times[kept])
            yield UserRows(UserKeys(users[kept]), records, found.seen(kept))


def letters_without(
    store: Store, file: LetterFile, users: Forgotten, run: str
) -> tuple[RewrittenLetters, set[str]] | None:
    """Write a file of dead letters in which those that name users have lost their text; None if none does.

    The letters stay, since what was refused stays refused, and is counted once. Raises `CorruptArtefactError`.
    """
    found = read_dead_letters(store, file.name, file.checksum)
    named = [named_in_letter(letter, users) for letter in found]
    if not any(named):
        return None
    kept = [_without_text(letter) if ids else letter for letter, ids in zip(found, named, strict=True)]
    folder, _, last = file.name.rpartition("/")
    name = f"{folder}/{last.partition('-')[0]}-{secrets.token_hex(4)}-{run}.jsonl"
    entry = store.write(name, msgspec.json.Encoder().encode_lines(kept), rows=len(kept))
    fields = entry.model_dump() | {"name": name, "replaces": file.name}
    written = RewrittenLetters(**fields, partition=file.partition, reasons=file.reasons)
    return written, {one for ids in named for one in ids}


def named_in_letter(letter: DeadLetter, users: Forgotten) -> set[str]:
    """Return the users whom a letter names, in what it keeps of the row that came or in what was wrong with it.

    Of a row that was cut, an id counts that begins like the end of what is kept.
    """
    data = letter.raw.encode() if letter.encoding == "utf-8" else base64.b64decode(letter.raw)
    is_cut = len(data) < letter.size
    found = {one for text in texts_of(data) for one in users.named_in(text, is_cut=is_cut)}
    # Long values are shortened, with dots at their end.
    *shortened, last = letter.detail.split("...")
    return found.union(users.named_in(last), *(users.named_in(part, is_cut=True) for part in shortened))


def _without_text(letter: DeadLetter) -> DeadLetter:
    return msgspec.structs.replace(letter, raw="", detail=REDACTED, encoding="utf-8", event_ms=None)
