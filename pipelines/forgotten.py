"""The users whom a redaction forgets: by key where keys are stored, by id in texts.

Dead letters hold the start of a row as it came, valid or not, in the format of its log. So an id is looked for in every
spelling that a text can mean (`spellings`). It counts as named where it is there as a whole word: not within a longer
run of letters, digits, ``_`` and ``-``. Binary rows have no words: there it counts anywhere.
"""

import binascii
import html
import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote, unquote_plus

import numpy as np

from weir.contracts import UserKeys, hash_id, shards_of

__all__ = ["Forgotten", "texts_of"]

_WORD: Final = re.compile(r"[\w-]+")
_BINARY: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]")
_TELLING: Final = 4
"""Characters of an id that say whose it is, where no word ends beside them or only its beginning is left."""
_LEVELS: Final = 3
"""Encodings within one another, such as JSON in a field of CSV."""

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
    """Distinct `ids`, and their `keys` (n,) in a store with this `secret`, in the same order."""

    ids: tuple[str, ...]
    keys: UserKeys
    _words: dict[str, list[tuple[int, str]]] = field(repr=False)
    _wordless: tuple[str, ...] = field(repr=False)
    _by_size: dict[int, frozenset[str]] = field(repr=False)
    _sorted: tuple[str, ...] = field(repr=False)
    _starts: re.Pattern[str] = field(repr=False)

    @classmethod
    def of(cls, ids: Iterable[str], secret: str = "") -> "Forgotten":
        """Return the users with these ids."""
        distinct = tuple(dict.fromkeys(ids))
        words, wordless = defaultdict[str, list[tuple[int, str]]](list), []
        by_size = defaultdict[int, set[str]](set)
        for one in distinct:
            by_size[len(one)].add(one)
            if (word := _WORD.search(one)) is None:
                wordless.append(one)
            else:
                words[word[0]].append((word.start(), one))
        keys = UserKeys(np.array([hash_id(one, secret) for one in distinct], np.int64))
        sizes = {size: frozenset(some) for size, some in by_size.items()}
        firsts = "".join(re.escape(one) for one in sorted({one[:1] for one in distinct}))
        starts = re.compile(f"[{firsts}]" if firsts else "(?!)")
        return cls(distinct, keys, dict(words), tuple(wordless), sizes, tuple(sorted(distinct)), starts)

    def by_shard(self, shards: int) -> dict[int, UserKeys]:
        """Return the keys of each user shard that has any, ascending."""
        owners = shards_of(self.keys, shards)
        return {shard: UserKeys(np.sort(self.keys[owners == shard])) for shard in np.unique(owners).tolist()}

    def named_in(self, text: str, *, is_cut: bool = False) -> set[str]:
        """Return the ids that a text names in any spelling; where it `is_cut`, also ids whose beginning is its end."""
        found = set[str]()
        for spelling in spellings(text):
            found.update(self._in_words(spelling))
            if _BINARY.search(spelling) is not None:
                found.update(self._anywhere(spelling))
            if is_cut:
                found.update(self._begun_by(_TORN_ESCAPE.sub("", spelling)))
        return found

    def _in_words(self, text: str) -> Iterator[str]:
        for word in _WORD.finditer(text):
            for offset, one in self._words.get(word[0], ()):
                start = word.start() - offset
                end = start + len(one)
                # Its first word is a whole one; the last one has to be, too.
                is_part = _WORD.match(one[-1]) is not None and _WORD.match(text, end) is not None
                if start >= 0 and text.startswith(one, start) and not is_part:
                    yield one
        yield from (one for one in self._wordless if one in text)

    def _anywhere(self, text: str) -> Iterator[str]:
        """Yield ids in a binary text: a short one only behind its length, as protobuf and Avro write it."""
        for first in self._starts.finditer(text):
            start = first.start()
            for size, ids in self._by_size.items():
                if (one := text[start : start + size]) in ids and (
                    size >= _TELLING or (start > 0 and text[start - 1] in {chr(size), chr(2 * size)})
                ):
                    yield one

    def _begun_by(self, text: str) -> Iterator[str]:
        """Yield the ids whose beginning is the end of a text."""
        for start in range(max(0, len(text) - len(max(self.ids, key=len, default=""))), len(text) - _TELLING + 1):
            end = text[start:]
            if start and _WORD.match(end) is not None and _WORD.match(text[start - 1]) is not None:
                continue
            place = bisect_left(self._sorted, end)
            while place < len(self._sorted) and self._sorted[place].startswith(end):
                yield self._sorted[place]
                place += 1


def texts_of(data: bytes) -> list[str]:
    """Return what bytes say: in UTF-8, or where they are none, in each of the encodings that they may be in."""
    try:
        return [data.decode()]
    except UnicodeDecodeError:
        texts = [data.decode(charset, errors="replace") for charset in _CHARSETS]
        return [*dict.fromkeys([*texts, *_wide(data)])]


def spellings(text: str) -> Iterator[str]:
    """Yield a text, and what it says if it, or a part of it, is encoded.

    Known are escapes of JSON and of Python, quotes that CSV doubles, percent-encoding, character references, UTF-16 and
    UTF-32 that were taken for UTF-8, and words in base64; also within one another.
    """
    known, level = {text}, [text]
    yield text
    for _ in range(_LEVELS):
        level = [found for one in level for found in _decoded(one)]
        level = [one for one in dict.fromkeys(level) if one not in known]
        known.update(level)
        yield from level


def _decoded(text: str) -> Iterator[str]:
    """Yield what a text says in each encoding in which it may be."""
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
    """Yield what bytes with zeros say in UTF-16, and in UTF-32, from whichever of them a character starts at."""
    sizes = (4, 2) if b"\0\0" in data else (2,) if b"\0" in data else ()
    for size in sizes:
        for at in range(size):
            yield from (data[at:].decode(f"utf-{8 * size}-{end}", errors="replace") for end in ("le", "be"))


def _unescaped(escape: re.Match[str]) -> str:
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
    """Return what a word says in base64; empty where that is no text."""
    whole = word[: len(word) - (len(word) % 4 == 1)].translate(_PLAIN_BASE64)
    try:
        return binascii.a2b_base64(whole + "=" * (-len(whole) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield str(value)
