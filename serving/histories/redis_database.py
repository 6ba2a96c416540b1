"""The layout of histories in Redis: its keys, the position, and the encoding of a user.

- ``weir:histories``: the position (`Position`), written in one transaction with the last users that it covers;
- ``weir:u:<generation><key>``: a user. A load of all users writes a new generation, which the position names only when
  all are written, so that readers switch from one complete set of users to the next;
- ``weir:histories:writer``: the lease of the follower that writes;
- ``weir:histories:checked``: the wall-clock time at which the follower last knew that no commit was missing.

The database holds nothing else: its number of keys shows whether keys were lost.

The value of a user is a row of 8-byte words, little-endian: checksum, number of positives, L items, L times; then the
checksum of the seen items, 1 if older seen items were left out, and the seen items. Checksums are computed as in
history files (`weir.contracts.histories.user_rows`), with seen items that start at 0.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import redis
from pydantic import BaseModel, ConfigDict
from redis.backoff import NoBackoff
from redis.retry import Retry

from weir.contracts import PADDING_KEY, FoundUsers, ItemKeys, SeenItems, UserError, UserKeys
from weir.contracts.commits.commit_log import Cursor
from weir.contracts.histories.user_rows import record_sums, seen_sums

__all__ = [
    "CHECKED",
    "LEASE",
    "POSITION",
    "UNCOUNTED",
    "Decoded",
    "Position",
    "connect",
    "decode",
    "encode",
    "keys_of",
    "place_of",
    "strangers",
]

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

POSITION: Final = b"weir:histories"
LEASE: Final = b"weir:histories:writer"
CHECKED: Final = b"weir:histories:checked"
USERS: Final = b"weir:u:"
UNCOUNTED: Final = -1
"""Value of `Position.keys` while Redis may still hold users of an earlier load."""

PASSWORD: Final = "WEIR_REDIS_PASSWORD"  # noqa: S105 - its name
"""Environment variable with the password, so that the URL need not contain it."""


class Position(BaseModel):
    """The state of the histories in Redis: they include all commits before commit `number`.

    `checksum`, of the last included commit, identifies the store. The commits have `sequence` panes; the histories
    cover the first `covered` panes. `generation` is the prefix of the users' keys, and records have `length` items.
    When the position was written, Redis held at least `keys` users (`UNCOUNTED`: unknown); `evicted` is its run id
    and its count of evictions then, "" without evictions.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    generation: str
    number: int
    sequence: int
    checksum: str
    covered: int
    length: int
    keys: int = UNCOUNTED
    evicted: str = ""

    @property
    def cursor(self) -> Cursor:
        """The position in the commit log."""
        return Cursor(self.number, self.sequence, self.checksum)


def connect(url: str, timeout: float) -> Any:
    """Return a `redis.Redis` client that connects on first use; commands fail after `timeout` seconds, without retries.

    Values are returned as bytes; the type is Any because the client's types also allow text. Raises `UserError` if
    `url` is not a Redis URL.
    """
    if urlsplit(url).scheme not in {"redis", "rediss", "unix"}:
        raise UserError(f"{place_of(url)}: must be redis://HOST:PORT/DATABASE, or rediss:// for TLS")
    options = {} if urlsplit(url).password else {"password": os.environ.get(PASSWORD)}
    return redis.Redis.from_url(
        url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0), **options
    )


def place_of(url: str) -> str:
    """Return a URL without its password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def keys_of(generation: str, users: UserKeys) -> list[bytes]:
    """Return the Redis keys of users in a generation."""
    prefix = USERS + generation.encode()
    data = users.tobytes()
    return [prefix + data[at : at + 8] for at in range(0, len(data), 8)]


def strangers(database: Any, generations: Iterable[str]) -> Iterable[bytes]:
    """Yield the Redis keys of users in any other than these generations."""
    prefixes = tuple(USERS + generation.encode() for generation in generations)
    yield from (key for key in database.scan_iter(USERS + b"*", count=1000) if not key.startswith(prefixes))


class Decoded(NamedTuple):
    """The decoded values of n users: their newest `items` (n, L), their `seen` items, and a mask `damaged` (n,).

    A damaged value is decoded as an unknown user.
    """

    items: ItemKeys
    seen: SeenItems
    damaged: Bool


def encode(rows: FoundUsers) -> list[bytes]:
    """Return the Redis value of each user in the rows; raises `CorruptArtefactError` if a stored row is damaged."""
    users = rows.users
    records, seen = rows.records(), rows.seen(np.arange(len(users)))
    values = np.concatenate([records.totals[:, None], records.items, records.times], axis=1)
    summed = np.concatenate([record_sums(users, values)[:, None], values], axis=1)
    bounded = seen.bounded.astype(np.int64)
    sums = seen_sums(users, np.zeros(len(users), np.int64), bounded, seen.items, seen.offsets)
    heads, items, at = np.stack([sums, bounded], axis=1), seen.items, seen.offsets.tolist()
    return [summed[n].tobytes() + heads[n].tobytes() + items[at[n] : at[n + 1]].tobytes() for n in range(len(users))]


def decode(users: UserKeys, values: Sequence[bytes | None], length: int) -> Decoded:
    """Decode the Redis values of users (n,), with records of `length` items; the value of an unknown user is None."""
    width = 2 + 2 * length
    least = 8 * (width + 2)
    there = np.array([n for n, value in enumerate(values) if value and len(value) >= least and not len(value) % 8])
    damaged = np.array([value is not None for value in values], np.bool_)
    items = np.full((len(users), length), PADDING_KEY, np.int64)
    if not len(there):
        return Decoded(ItemKeys(items), _seen([b""] * len(users), damaged), damaged)
    found = [value for n in there.tolist() if (value := values[n])]
    rows = np.frombuffer(b"".join([value[:least] for value in found]), np.int64).reshape(-1, width + 2)
    mine, seen = users[there], [value[least:] for value in found]
    offsets = np.concatenate([[0], np.cumsum([len(one) // 8 for one in seen])])
    flat, starts = np.frombuffer(b"".join(seen), np.int64), np.zeros(len(there), np.int64)
    is_sound = record_sums(mine, rows[:, 1:width]) == rows[:, 0]
    is_sound &= seen_sums(mine, starts, rows[:, width + 1], flat, offsets) == rows[:, width]
    damaged[there[is_sound]] = False
    items[there[is_sound]] = rows[is_sound, 2 : 2 + length]
    parts, bounded = [b""] * len(users), damaged.copy()
    for number, n in enumerate(there.tolist()):
        if is_sound[number]:
            parts[n], bounded[n] = seen[number], rows[number, width + 1] != 0
    return Decoded(ItemKeys(items), _seen(parts, bounded), damaged)


def _seen(parts: list[bytes], bounded: Bool) -> SeenItems:
    """Return the seen items of each user from their bytes; `bounded` marks incomplete ones."""
    offsets = np.concatenate([[0], np.cumsum([len(part) // 8 for part in parts], dtype=np.int64)])
    return SeenItems(ItemKeys(np.frombuffer(b"".join(parts), np.int64)), offsets, bounded)
