"""Proof of erasure: read every file of a store and report the files that still hold an erased user.

The first bytes tell the kind of a file. Stored user keys are compared; other binary data is searched for the bytes of
keys and ids, text for ids. Short or numeric ids would match by chance, so text other than log lines and CSV is not
searched for them.
"""

import gzip
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weir.contracts import CorruptArtefactError, LocalCache, LogState, Store, UserFile
from weir.contracts.base import columns
from weir.contracts.storage.local_files import is_draft
from weir.pipelines.maintenance.erased_files import Forgotten, named_in_letter
from weir.pipelines.runs.hash_collisions import KeyOwners
from weir.readers import DeadLetter

__all__ = ["Sighting", "sightings"]

_BLOCK: Final = 1 << 24
_OF_ITEMS: Final = ("bundles/", "checkpoints/", "variants/", "state/item-keys", "state/popularity")
"""Data with item keys, which equal the keys of users with the same ids."""
_SHORT: Final = 4


class Sighting(NamedTuple):
    """A file that holds an erased user, or may: `what` says where in the file, or why the file cannot be read."""

    name: str
    what: str


def sightings(
    store: Store,
    users: Forgotten,
    *,
    user_column: str = columns.USER_ID,
    caches: Iterable[LocalCache] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[Sighting]:
    """Return the files of a store, and of local `caches`, that still hold one of the users or cannot be read.

    `user_column` is the user column of the log. `progress` is called with the number of files read and their total.
    """
    search = _Search.of(store, users, user_column)
    waiting = LogState.open(store).erasing.keys() | LogState.open(store).histories.replaced.keys()
    names, found = sorted(store.find()), []
    for done, name in enumerate(names, start=1):
        what = search.stored(store, name)
        if what and (name in waiting or name.rpartition("/")[0] in waiting):
            what += "; it has been replaced and waits for its removal (pipeline.erasure_days)"
        if what and is_draft(name):
            what += "; a killed process has left it: once it is an hour old, the next `weir forget` removes it"
        found.append(Sighting(name, what))
        if progress is not None:
            progress(done, len(names))
    copies = [path for folder in {cache.folder for cache in caches} for path in sorted(folder.glob("*.users"))]
    found += [Sighting(str(path), search.local(path)) for path in copies]
    return [sighting for sighting in found if sighting.what]


@dataclass(frozen=True)
class _Search:
    """Searches one file at a time for users, and returns a text that says where the file holds one, "" if it does not.

    `keys` are the bytes of user keys that are not item keys, `words` the users whose ids are distinctive in any text.
    """

    users: Forgotten
    user_column: str
    keys: tuple[bytes, ...]
    words: Forgotten

    @classmethod
    def of(cls, store: Store, users: Forgotten, user_column: str) -> "_Search":
        """Return the search for users; reads the store's item keys to tell them from user keys."""
        owners = KeyOwners.load(store)
        owners.catch_up(LogState.open(store).cursor.sequence - 1)
        keys = users.keys[owners.is_unknown(users.keys)].astype("<i8")
        telling = (one for one in users.ids if len(one) >= _SHORT and not one.isdigit())
        return cls(users, user_column, tuple(key.tobytes() for key in keys), Forgotten.of(telling))

    def stored(self, store: Store, name: str) -> str:
        """Search a file of the store by its name; "" also for a file that was removed meanwhile."""
        if name.startswith("dead-letters/"):
            return _told("its letters", self._of_letters(store, name))
        if store.local_path is not None:
            return self.local(store.local_path / name, name)
        with tempfile.NamedTemporaryFile(prefix="weir-") as copy:
            try:
                store.copy_to(name, copy)
            except FileNotFoundError:
                return ""
            copy.flush()
            return self.local(Path(copy.name), name)

    def local(self, path: Path, name: str = "") -> str:
        """Search a file on local disk, `name` in the store; return why it cannot be read if it cannot."""
        try:
            with path.open("rb") as file:
                magic = file.read(8)
                file.seek(0)
                return self._read(file, path, magic, name)
        except FileNotFoundError:
            return ""  # removed in the meantime
        except (CorruptArtefactError, pa.ArrowException, OSError, EOFError, ValueError) as error:
            return f"cannot be read, so it may hold any user: {error}"

    def _read(self, file: IO[bytes], path: Path, magic: bytes, name: str) -> str:
        """Search an open file, of the kind that its first bytes `magic` tell."""
        if magic == b"WEIRUSER":
            # Cached copies have a prefix before the name.
            user_file = UserFile(path, name or path.name.partition("-")[2])
            return _told("its users", self._ids([user_file.place(key) >= 0 for key in self.users.keys.tolist()]))
        if magic[:4] == b"PAR1":
            return _told("its rows", self._of_table(pq.ParquetFile(file)))
        if magic[:6] == b"ARROW1":
            return _told("its rows", self._of_columns(pa.ipc.open_file(pa.PythonFile(file)).read_all()))
        if magic[:2] == b"\x1f\x8b":
            return _told("its text", self._of_text(gzip.decompress(file.read()).decode(errors="replace"), name))
        return self._of_bytes(file, name)

    def _of_table(self, file: pq.ParquetFile) -> set[str]:
        """Return the ids of the users in a Parquet file."""
        searched = {columns.USER_KEY, columns.USER_ID, self.user_column}
        return self._of_columns(file.read([name for name in file.schema_arrow.names if name in searched]))

    def _of_columns(self, rows: pa.Table) -> set[str]:
        """Return the ids of the users in the user columns of a table."""
        found = set[str]()
        if columns.USER_KEY in rows.column_names:
            # Served lists may have no user; with nulls, numpy would make the keys floats.
            found |= self._ids(np.isin(self.users.keys, rows[columns.USER_KEY].drop_null().to_numpy()))
        for name in {columns.USER_ID, self.user_column} & set(rows.column_names):
            found |= set(self.users.ids) & {str(one) for one in rows[name].unique().to_pylist()}
        return found

    def _of_letters(self, store: Store, name: str) -> set[str]:
        """Return the ids of the users that a file of dead letters names."""
        try:
            lines = store.read(name).splitlines()
        except FileNotFoundError:
            return set()
        found = set[str]()
        for line in lines:
            try:
                found |= named_in_letter(msgspec.json.decode(line, type=DeadLetter), self.users)
            except (msgspec.DecodeError, ValueError):
                found |= self.users.named_in(line.decode(errors="replace"))
        return found

    def _of_bytes(self, file: IO[bytes], name: str) -> str:
        """Search a file of no known kind: text for ids, and other data for keys and ids."""
        start = file.read(_BLOCK)
        try:
            text = (start + file.read()).decode() if b"\0" not in start else None
        except UnicodeDecodeError:
            text = None
        if text is not None:
            return _told("its text", self._of_text(text, name))
        file.seek(0)
        is_of_items = name.startswith(_OF_ITEMS) or name.endswith("/sketch.bin")
        keys = self.keys if is_of_items else tuple(key.tobytes() for key in self.users.keys.astype("<i8"))
        spelled = {} if is_of_items else self._spelled()
        longest = max(map(len, [*keys, *spelled]), default=2)
        blocks = _overlapping(file, longest - 1)
        held = {key for block in blocks for key in (*keys, *spelled) if key in block}
        found = {self._id_of(key) for key in held - spelled.keys()}
        return _told("its data, by key or id", found | {spelled[text] for text in held & spelled.keys()})

    def _spelled(self) -> dict[bytes, str]:
        """Return encoded id -> id for distinctive ids, in common character sets."""
        charsets = ("utf-8", "utf-16-le", "utf-16-be", "cp1252")
        spelled = {one.encode(charset, errors="ignore"): one for one in self.words.ids for charset in charsets}
        return {text: one for text, one in spelled.items() if len(text) >= _SHORT}

    def _of_text(self, text: str, name: str) -> set[str]:
        """Return the ids that a text names; `name` tells whether the file may hold log lines."""
        is_log = name.removesuffix(".gz").endswith((".csv", ".tsv"))
        found = (self.users if is_log else self.words).named_in(text)
        if not name.startswith(("commits/", "evaluations/", "monitor/", "variants/")):
            found |= set(self.users.ids) & set(_users_in_lines(text, self.user_column))
        return found

    def _ids(self, held: Any) -> set[str]:
        """Return the ids of the users marked in `held` (n,)."""
        return {self.users.ids[place] for place in np.flatnonzero(held).tolist()}

    def _id_of(self, key: bytes) -> str:
        keys: list[int] = self.users.keys.tolist()
        return self.users.ids[keys.index(int.from_bytes(key, "little", signed=True))]


def _told(where: str, ids: set[str]) -> str:
    """Return the text of a sighting, "" without ids."""
    return f"{where}: {', '.join(sorted(ids))}" if ids else ""


def _overlapping(file: IO[bytes], repeated: int) -> Iterator[bytes]:
    """Yield the blocks of a file, each after the last `repeated` bytes before it, so that no search term is split."""
    end = b""
    while block := file.read(_BLOCK):
        yield end + block
        end = (end + block[-repeated:])[-repeated:]


def _users_in_lines(text: str, column: str) -> Iterator[str]:
    """Yield the users of JSON log lines."""
    for line in text.split("\n"):
        if line.startswith("{") and column in line:
            try:
                yield str(json.loads(line).get(column))
            except ValueError:
                continue
