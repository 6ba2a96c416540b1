"""Rewritten copies of store files without erased users.

`pane_without`, `users_file_without` and `letters_without` write a copy beside a file; a commit then replaces the file
by the copy (`weir.pipelines.maintenance.erasure`). `forget_served` rewrites served lists, which no commit names: it
writes a copy and removes the file. If it is killed in between, readers use the copy, which has fewer rows, and the next
redaction removes the file.

Dead letters hold the start of a raw row, in the format of its log. So ids are searched in every plausible encoding
(`spellings`). An id matches as a whole word: not within a longer run of letters, digits, ``_`` and ``-``. In binary
rows, which have no words, an id matches anywhere.
"""

import base64
import binascii
import html
import json
import re
import secrets
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, unquote_plus

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
    hash_id,
    shards_of,
    write_user_file,
)
from weir.contracts.base import columns
from weir.contracts.commits.commit import RedactedPane, RewrittenLetters
from weir.contracts.histories.lookup import open_file
from weir.contracts.served_lists import all_served, read_served, write_served
from weir.contracts.storage.artefacts import read_column, read_table, write_table
from weir.pipelines.transforms.read import read_dead_letters
from weir.readers import DeadLetter
from weir.sketches import ExactCounter, load

__all__ = [
    "Forgotten",
    "RemovedLists",
    "forget_served",
    "letters_without",
    "named_in_letter",
    "pane_without",
    "texts_of",
    "users_file_without",
]

REDACTED: Final = "the text named a user who has been forgotten"
"""The detail of a dead letter whose text was blanked."""

_USERS_AT_ONCE: Final = 4096
"""Users of a file that are in memory at once."""

_WORD: Final = re.compile(r"[\w-]+")
_BINARY: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]")
_TELLING: Final = 4
"""Shortest id that may match without a word boundary, and shortest matching start of a cut id; characters."""
_LEVELS: Final = 3
"""Depth of nested encodings, such as JSON in a field of CSV."""

_ESCAPE: Final = re.compile(
    r"((?:\\u[0-9a-fA-F]{4})+)|((?:\\x[0-9a-fA-F]{2})+)|\\U([0-9a-fA-F]{8})|\\([^uxU])", re.DOTALL
)
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_TORN_ESCAPE: Final = re.compile(r"(?:\\(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?)?|%[0-9a-fA-F]?|\ufffd)+$")
_CHARSETS: Final = ("utf-8", "cp1252", "cp1250", "cp1251", "koi8-r", "gb18030", "big5", "shift_jis", "euc-jp", "euc-kr")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{2,}")
_PLAIN_BASE64: Final = str.maketrans("-_", "+/")


@dataclass(frozen=True)
class Forgotten:
    """Users to forget: their distinct `ids`, in the same order their `keys` (n,), and indices of the ids for searches.

    `_words` maps the first word of an id to (its offset, the id); `_wordless` are ids without a word, `_by_size` the
    ids by length, `_sorted` the ids in order; `_starts` matches the first character of any id.
    """

    ids: tuple[str, ...]
    keys: UserKeys
    _words: dict[str, list[tuple[int, str]]] = field(repr=False)
    _wordless: tuple[str, ...] = field(repr=False)
    _by_size: dict[int, frozenset[str]] = field(repr=False)
    _sorted: tuple[str, ...] = field(repr=False)
    _starts: re.Pattern[str] = field(repr=False)

    @classmethod
    def of(cls, ids: Iterable[str], secret: str = "") -> "Forgotten":
        """Return the users with these ids, in a store with this key `secret`."""
        distinct = tuple(dict.fromkeys(ids))
        words, wordless = defaultdict[str, list[tuple[int, str]]](list), []
        by_size = defaultdict[int, set[str]](set)
        for user in distinct:
            by_size[len(user)].add(user)
            if (word := _WORD.search(user)) is None:
                wordless.append(user)
            else:
                words[word[0]].append((word.start(), user))
        keys = UserKeys(np.array([hash_id(user, secret) for user in distinct], np.int64))
        sizes = {size: frozenset(users) for size, users in by_size.items()}
        firsts = "".join(re.escape(first) for first in sorted({user[:1] for user in distinct}))
        starts = re.compile(f"[{firsts}]" if firsts else "(?!)")
        return cls(distinct, keys, dict(words), tuple(wordless), sizes, tuple(sorted(distinct)), starts)

    def by_shard(self, shards: int) -> dict[int, UserKeys]:
        """Return user shard -> the keys of its users, ascending, for the shards that have any of the users."""
        owners = shards_of(self.keys, shards)
        return {shard: UserKeys(np.sort(self.keys[owners == shard])) for shard in np.unique(owners).tolist()}

    def named_in(self, text: str, *, is_cut: bool = False) -> set[str]:
        """Return the ids that a text names, in any spelling; if it was cut off, also ids that may begin at its end."""
        found = set[str]()
        for spelling in spellings(text):
            found.update(self._in_words(spelling))
            if _BINARY.search(spelling) is not None:
                found.update(self._anywhere(spelling))
            if is_cut:
                found.update(self._begun_by(_TORN_ESCAPE.sub("", spelling)))
        return found

    def _in_words(self, text: str) -> Iterator[str]:
        """Yield ids that are whole words of a text, and ids without a word anywhere in it."""
        for word in _WORD.finditer(text):
            for offset, one in self._words.get(word[0], ()):
                start = word.start() - offset
                end = start + len(one)
                # The first word matches whole; the last one must, too.
                is_part = _WORD.match(one[-1]) is not None and _WORD.match(text, end) is not None
                if start >= 0 and text.startswith(one, start) and not is_part:
                    yield one
        yield from (one for one in self._wordless if one in text)

    def _anywhere(self, text: str) -> Iterator[str]:
        """Yield ids anywhere in a binary text; short ids only after their length, as in protobuf and Avro."""
        for first in self._starts.finditer(text):
            start = first.start()
            for size, ids in self._by_size.items():
                if (one := text[start : start + size]) in ids and (
                    size >= _TELLING or (start > 0 and text[start - 1] in {chr(size), chr(2 * size)})
                ):
                    yield one

    def _begun_by(self, text: str) -> Iterator[str]:
        """Yield the ids whose start is the end of a text, by at least `_TELLING` characters."""
        for start in range(max(0, len(text) - len(max(self.ids, key=len, default=""))), len(text) - _TELLING + 1):
            end = text[start:]
            if start and _WORD.match(end) is not None and _WORD.match(text[start - 1]) is not None:
                continue
            place = bisect_left(self._sorted, end)
            while place < len(self._sorted) and self._sorted[place].startswith(end):
                yield self._sorted[place]
                place += 1


def texts_of(data: bytes) -> list[str]:
    """Decode bytes as UTF-8 or, if they are not UTF-8, with each supported character set."""
    try:
        return [data.decode()]
    except UnicodeDecodeError:
        texts = [data.decode(charset, errors="replace") for charset in _CHARSETS]
        return [*dict.fromkeys([*texts, *_wide(data)])]


def spellings(text: str) -> Iterator[str]:
    """Yield a text and its decoded forms, up to `_LEVELS` encodings nested in one another.

    Decodes JSON and Python escapes, doubled CSV quotes, percent-encoding, character references, UTF-16 and UTF-32 read
    as UTF-8, and base64 words.
    """
    seen, level = {text}, [text]
    yield text
    for _ in range(_LEVELS):
        level = [decoded for encoded in level for decoded in _decoded(encoded)]
        level = [decoded for decoded in dict.fromkeys(level) if decoded not in seen]
        seen.update(level)
        yield from level


def _decoded(text: str) -> Iterator[str]:
    """Yield the text after one step of each decoding that may apply."""
    if "\\" in text:
        yield _ESCAPE.sub(_unescaped, text)
    if '""' in text:
        yield text.replace('""', '"')
    if "%" in text:
        yield unquote(text)
        yield unquote_plus(text)
    if "&" in text:
        yield html.unescape(text)
    if "\0" in text:
        yield text.replace("\0", "")
        yield from _wide(text.encode(errors="replace"))
    if text[:1] in {"{", "["}:
        with suppress(ValueError, RecursionError):
            yield "\n".join(_leaves(json.loads(text)))
    if words := [*filter(None, map(_of_base64, _BASE64.findall(text)))]:
        yield "\n".join(words)


def _wide(data: bytes) -> Iterator[str]:
    """Yield bytes decoded as UTF-16 and UTF-32, at each alignment and in both byte orders, if they have zero bytes."""
    sizes = (4, 2) if b"\0\0" in data else (2,) if b"\0" in data else ()
    for size in sizes:
        for at in range(size):
            yield from (data[at:].decode(f"utf-{8 * size}-{end}", errors="replace") for end in ("le", "be"))


def _unescaped(escape: re.Match[str]) -> str:
    """Return the text of an escape that `_ESCAPE` matches."""
    utf16, raw, character, letter = escape.groups()
    if utf16:
        return bytes.fromhex(utf16.replace("\\u", "")).decode("utf-16-be", errors="replace")
    if raw:
        data = bytes.fromhex(raw.replace("\\x", ""))
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data.decode("latin-1")
    if character:
        return chr(int(character, 16)) if int(character, 16) < 0x110000 else "\ufffd"
    return _LETTERS.get(letter, letter)


@lru_cache(maxsize=1 << 16)
def _of_base64(word: str) -> str:
    """Return the text in a base64 word, "" if it holds none."""
    whole = word[: len(word) - (len(word) % 4 == 1)].translate(_PLAIN_BASE64)
    try:
        return binascii.a2b_base64(whole + "=" * (-len(whole) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _leaves(value: Any) -> Iterator[str]:
    """Yield the names and values in a JSON value as text."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield str(value)


class RemovedLists(NamedTuple):
    """The number of changed files and of removed served lists, and the user keys of these lists."""

    files: int
    lists: int
    users: frozenset[int]


def forget_served(store: Store, users: UserKeys) -> RemovedLists:
    """Remove the served lists of the users (n,) from the store; raises `CorruptArtefactError` for a damaged file."""
    files, lists, held = 0, 0, set[int]()
    for file in all_served(store):
        named = read_served(store, file, [columns.USER_KEY])
        if named is None or not (theirs := np.isin(_keys(named), users)).any():
            continue
        table = read_served(store, file)
        if table is None:
            continue
        if not theirs.all():
            write_served(store, file.segment, table.filter(pa.array(~theirs)))
        store.remove(file.name)
        files, lists = files + 1, lists + int(theirs.sum())
        held |= set(_keys(table)[theirs].tolist())
    return RemovedLists(files, lists, frozenset(held))


def _keys(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the user keys (n,) of served lists; 0, which is not a valid key, for a list without a user."""
    keys: np.ndarray[tuple[int], np.dtype[np.int64]] = table[columns.USER_KEY].fill_null(0).to_numpy()
    return keys


def pane_without(
    store: Store, pane: WindowManifest, users: Mapping[int, UserKeys], run: str
) -> tuple[RedactedPane, UserKeys] | None:
    """Write a copy of a pane without the users; return the copy and the users found, or None if it holds none of them.

    `users` maps user shard to ascending keys; `run` names the copy. Reads only the user column first. Raises
    `CorruptArtefactError`.
    """
    held = {shard: found for shard in users if len(found := _held(store, pane, shard, users[shard]))}
    if not held:
        return None
    # Panes of one window share its folder, so the attempt names the pane.
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
    """Return the users, ascending, that have rows in a shard of a pane."""
    entry = pane.examples.get(shard)
    if entry is None:
        return UserKeys(np.empty(0, np.int64))
    return UserKeys(np.intersect1d(read_column(store, pane.folder, entry, columns.USER_KEY).to_numpy(), users))


def _counts(labels: np.ndarray[tuple[int], np.dtype[np.int8]]) -> WindowCounts:
    positives, negatives = (int((labels == label).sum()) for label in (Label.POSITIVE, Label.NEGATIVE))
    return WindowCounts(events=len(labels), positives=positives, negatives=negatives)


def _manifest(pane: WindowManifest, attempt: str, files: list[FileEntry], gone: WindowCounts) -> WindowManifest:
    """Return the manifest of a pane's copy: its files, and the counts without the rows that are `gone`."""
    left = {name: getattr(pane.counts, name) - getattr(gone, name) for name in ("events", "positives", "negatives")}
    counts = pane.counts.model_copy(update=left)
    return pane.model_copy(update={"attempt": attempt, "files": tuple(files), "counts": counts})


def _sketch_without(data: bytes, users: UserKeys) -> bytes:
    """Return an exact user sketch without these users; a hashed sketch identifies no user and stays."""
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
    """Write a copy of a user file without the users (n,); return the copy and the users found, or None without any.

    The copy is None if no user remains. Raises `CorruptArtefactError`.
    """
    opened = open_file(store, file, cache)
    places = np.array([opened.place(user) for user in users.tolist()], np.int64)
    held, gone = UserKeys(users[places >= 0]), np.sort(places[places >= 0])
    if not len(held):
        return None
    if len(gone) == opened.count:
        return None, held
    blocks = ((start, min(start + _USERS_AT_ONCE, opened.count)) for start in range(0, opened.count, _USERS_AT_ONCE))
    going = UserTable.of_shard((opened,), opened.length).find(held).seen(np.arange(len(held)))
    seen = sum(int(opened.seen_counts(*block).sum()) for block in blocks) - len(going.items)
    name = HistoryFile.path(file.shard, run, secrets.token_hex(4))
    entry = write_user_file(
        store, name, _others(opened, gone), users=opened.count - len(gone), seen=seen, length=opened.length,
        bound=opened.bound,
    )  # fmt: skip
    return HistoryFile.of(name, entry, file.shard, file.length, (file.name,)), held


def _others(file: UserFile, gone: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[UserRows]:
    """Yield the rows of a user file in blocks, without the rows at the indices `gone` (n,)."""
    table = UserTable.of_shard((file,), file.length)
    for start in range(0, file.count, _USERS_AT_ONCE):
        users = file.users(start, min(start + _USERS_AT_ONCE, file.count))
        kept = np.setdiff1d(np.arange(len(users)), gone - start)
        if len(kept):
            found = table.stretch(users, start)
            totals, items, times = found.records()
            records = Records(totals[kept], ItemKeys(items[kept]), times[kept])
            yield UserRows(UserKeys(users[kept]), records, found.seen(kept))


def letters_without(
    store: Store, file: LetterFile, users: Forgotten, run: str
) -> tuple[RewrittenLetters, set[str]] | None:
    """Write a copy of a file of dead letters in which letters that name the users are blanked.

    Returns the copy and the ids found, or None if no letter names a user. Blanked letters stay, so that refused rows
    stay refused and count once. Raises `CorruptArtefactError`.
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
    """Return the ids that a letter names, in its raw row or in its detail.

    If the row was cut, an id also matches if the last characters of the kept text are its start.
    """
    data = letter.raw.encode() if letter.encoding == "utf-8" else base64.b64decode(letter.raw)
    is_cut = len(data) < letter.size
    found = {one for text in texts_of(data) for one in users.named_in(text, is_cut=is_cut)}
    # Long values in a detail are cut, and end with dots.
    *shortened, last = letter.detail.split("...")
    return found.union(users.named_in(last), *(users.named_in(part, is_cut=True) for part in shortened))


def _without_text(letter: DeadLetter) -> DeadLetter:
    return msgspec.structs.replace(letter, raw="", detail=REDACTED, encoding="utf-8", event_ms=None)
