"""Keys: the 64-bit names that stages use in place of id strings.

A key is ``xxh3_64`` of the UTF-8 id, read as a signed 64-bit integer, so that every process and every
platform gives an item the same name without a shared dictionary. Two ids of a catalogue of 10 million collide
with probability 3e-6.

``xxh3`` is no cryptographic hash: someone who chooses ids can find two with the same key. A store may therefore
have a secret (`StoreFormat.key_secret`): its keys are 64 bits of BLAKE2b (RFC 7693) keyed with it, which
nobody can predict.
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
"""An array of keys, of any kind."""

ItemKeys = NewType("ItemKeys", npt.NDArray[np.int64])
"""Keys of items, of any shape; `PADDING_KEY` where there is none."""

UserKeys = NewType("UserKeys", npt.NDArray[np.int64])
"""Keys of users."""

PADDING_KEY = Key(0)
"""Fills fixed-length histories where the user has no older item; no id hashes to it."""


def hash_id(raw: str, secret: str = "") -> Key:
    """Return the key of one id, in a store with this secret (hexadecimal digits) or without one."""
    if secret:
        digest = hashlib.blake2b(raw.encode(), digest_size=8, key=bytes.fromhex(secret)).digest()
        unsigned = int.from_bytes(digest, "little")
    else:
        unsigned = xxhash.xxh3_64_intdigest(raw.encode())
    signed = unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned
    # The one id in 2^64 that would look like padding is moved aside.
    return Key(signed or 1)


def hash_ids(ids: pa.Array | pa.ChunkedArray, secret: str = "") -> Keys:
    """Return the keys of a string array as `hash_id` does, shape (n,), int64; nulls become `PADDING_KEY`.

    Every distinct id is hashed once.
    """
    encoded = pc.dictionary_encode(ids)
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    distinct = _keys_of(encoded.dictionary.cast(pa.binary()).to_numpy(zero_copy_only=False), secret)
    table = np.append(distinct, PADDING_KEY)
    keys: Keys = table[encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)]
    return keys


def hash_strings(ids: Sequence[str], secret: str = "") -> Keys:
    """Return the keys of ids as `hash_id` does, (n,); for few ids, which need not be distinct."""
    if secret:
        return np.array([hash_id(raw, secret) for raw in ids], np.int64)
    return _unkeyed([raw.encode() for raw in ids])


def _keys_of(spelled: npt.NDArray[np.object_], secret: str) -> Keys:
    """Return the keys of ids in UTF-8, (n,), which are no nulls."""
    if secret:
        return np.fromiter((hash_id(raw.decode(), secret) for raw in spelled), np.int64, len(spelled))
    return _unkeyed(spelled)


def _unkeyed(ids: Sequence[bytes] | npt.NDArray[np.object_]) -> Keys:
    # As `hash_id`, but one call of C for each id and no function around it.
    digests = np.fromiter(map(xxhash.xxh3_64_intdigest, ids), np.uint64, len(ids))
    keys = digests.view(np.int64)
    keys[keys == PADDING_KEY] = 1
    return keys


def shards_of(users: UserKeys, shards: int) -> Keys:
    """Return the user shard of each key, (n,), of so many."""
    return (users.view(np.uint64) % np.uint64(shards)).astype(np.int64)
