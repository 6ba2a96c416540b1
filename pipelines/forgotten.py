"""The users whom a redaction forgets: by key where keys are stored, by id in texts.

Dead letters hold lines as they came, valid or not. An id counts as named in a text where it is there as a whole word:
not within a longer run of letters, digits, ``_`` and ``-``. Escapes of JSON and of CSV are taken into account.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from weir.contracts import UserKeys, hash_id, shards_of

__all__ = ["Forgotten"]

_WORD: Final = re.compile(r"[\w-]+")
_ESCAPE: Final = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")


@dataclass(frozen=True)
class Forgotten:
    """Distinct `ids`, and their `keys` (n,) in a store with this `secret`, in the same order."""

    ids: tuple[str, ...]
    keys: UserKeys
    _words: dict[str, list[tuple[int, str]]] = field(repr=False)
    _wordless: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, ids: Iterable[str], secret: str = "") -> "Forgotten":
        """Return the users with these ids."""
        distinct = tuple(dict.fromkeys(ids))
        words, wordless = defaultdict[str, list[tuple[int, str]]](list), []
        for one in distinct:
            if (word := _WORD.search(one)) is None:
                wordless.append(one)
            else:
                words[word[0]].append((word.start(), one))
        keys = UserKeys(np.array([hash_id(one, secret) for one in distinct], np.int64))
        return cls(distinct, keys, dict(words), tuple(wordless))

    def by_shard(self, shards: int) -> dict[int, UserKeys]:
        """Return the keys of each user shard that has any, ascending."""
        owners = shards_of(self.keys, shards)
        return {shard: UserKeys(np.sort(self.keys[owners == shard])) for shard in np.unique(owners).tolist()}

    def named_in(self, text: str) -> set[str]:
        """Return the ids that a text names."""
        return {one for spelling in _spellings(text) for one in self._in_words(spelling)}

    def _in_words(self, text: str) -> Iterator[str]:
        for word in _WORD.finditer(text):
            for offset, one in self._words.get(word[0], ()):
                start = word.start() - offset
                end = start + len(one)
                # Its first word is a whole one; the last one has to be, too.
                is_cut = _WORD.match(one[-1]) is not None and _WORD.match(text, end) is not None
                if start >= 0 and text.startswith(one, start) and not is_cut:
                    yield one
        yield from (one for one in self._wordless if one in text)


def _spellings(text: str) -> Iterator[str]:
    """Yield a text, and what it says if it is JSON or a part of it, or a row of CSV."""
    yield text
    if '""' in text:
        yield text.replace('""', '"')
    if "\\" in text:
        yield _ESCAPE.sub(_unescaped, text)
        with suppress(ValueError, RecursionError):
            yield "\n".join(_leaves(json.loads(text)))


def _unescaped(escapes: re.Match[str]) -> str:
    units = bytes.fromhex(escapes[0].replace("\\u", ""))
    return units.decode("utf-16-be", errors="replace")


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
