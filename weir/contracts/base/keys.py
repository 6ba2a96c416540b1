"""Keys: 64-bit hashes that stages use in place of id strings.

A key is ``xxh3_64`` of the UTF-8 id, read as a signed 64-bit integer: every process and every platform derives the same
key without a shared dictionary. In a catalogue of 10 million ids, two collide with probability 3e-6.

``xxh3`` is not cryptographic: an attacker who chooses ids can find two with the same key. A store may therefore have a
secret (`StoreFormat.key_secret`): its keys are then 64 bits of BLAKE2b (RFC 7693) keyed with it, which an attacker
cannot predict.
"""

import hashlib
from collections.abc import Sequence
from typing import NewType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

__all__ = [
    "PADDING_KEY",
    "ItemKeys",
    "Key",
    "Keys",
    "RawId",
    "UserKeys",
    "hash_id",
    "hash_ids",
    "hash_strings",
    "shards_of",
]

RawId = NewType("RawId", str)
"""An id as the log spells it."""

Key = NewType("Key", int)
"""A hashed id: int64, never `PADDING_KEY`."""

Keys = npt.NDArray[np.int64]
"""Keys of users, items or events."""

ItemKeys = NewType("ItemKeys", npt.NDArray[np.int64])
"""Keys of items, of any shape; `PADDING_KEY` marks an absent item."""

UserKeys = NewType("UserKeys", npt.NDArray[np.int64])
"""Keys of users."""

PADDING_KEY = Key(0)
"""Left padding of fixed-length histories; no id hashes to it."""


def hash_id(raw: str, secret: str = "") -> Key:
    """Return the key of one id; `secret` is the store's key secret, in hexadecimal digits, "" without a secret."""
    if secret:
        digest = hashlib.blake2b(raw.encode(), digest_size=8, key=bytes.fromhex(secret)).digest()
        unsigned = int.from_bytes(digest, "little")
    else:
        unsigned = xxhash.xxh3_64_intdigest(raw.encode())
    signed = unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned
    # No id may look like padding: a hash of 0 becomes 1.
    return Key(signed or 1)


def hash_ids(ids: pa.Array | pa.ChunkedArray, secret: str = "") -> Keys:
    """Return the keys of a string array, (n,), int64, as `hash_id` does; nulls become `PADDING_KEY`.

    Each distinct id is hashed once.
    """
    encoded = pc.dictionary_encode(ids)
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    distinct = _keys_of(encoded.dictionary.cast(pa.binary()).to_numpy(zero_copy_only=False), secret)
    table = np.append(distinct, PADDING_KEY)
    keys: Keys = table[encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)]
    return keys


def hash_strings(ids: Sequence[str], secret: str = "") -> Keys:
    """Return the keys of Python strings, (n,), as `hash_id` does; for few ids, as it hashes repeated ids again."""
    if secret:
        return np.array([hash_id(raw, secret) for raw in ids], np.int64)
    return _unkeyed([raw.encode() for raw in ids])


def _keys_of(spelled: npt.NDArray[np.object_], secret: str) -> Keys:
    """Return the keys of ids in UTF-8, (n,), without nulls."""
    if secret:
        return np.fromiter((hash_id(raw.decode(), secret) for raw in spelled), np.int64, len(spelled))
    return _unkeyed(spelled)


def _unkeyed(ids: Sequence[bytes] | npt.NDArray[np.object_]) -> Keys:
    # As `hash_id`, but with one C call per id and no Python function around it.
    digests = np.fromiter(map(xxhash.xxh3_64_intdigest, ids), np.uint64, len(ids))
    keys = digests.view(np.int64)
    keys[keys == PADDING_KEY] = 1
    return keys


def shards_of(users: UserKeys, shards: int) -> Keys:
    """Return the user shard, (n,), of each key, below `shards`."""
    return (users.view(np.uint64) % np.uint64(shards)).astype(np.int64)
