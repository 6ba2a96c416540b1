"""Files that were rewritten under their name: noticed by their first bytes, and read as a new generation.

The first generation of a file has its name as key, the next ones ``name@2``, ``name@3``. No file's own name can be
mistaken for such a key, because the names of partitions end in the suffix of their format. What commits say of the
keys decides which generation a file is, so it stays the same over restarts.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import xxhash

from weir.readers.sources import Partition, printable

__all__ = ["FINGERPRINT_BYTES", "KnownFile", "generation", "identified", "same_start"]

logger = logging.getLogger(__name__)

FINGERPRINT_BYTES: Final = 4096


@dataclass(frozen=True)
class KnownFile:
    """A partition as the last run that read it had it listed."""

    size: int
    fingerprint: str
    arrival_ms: int | None


def same_start(partition: Partition, fingerprint: str) -> bool:
    """Say whether the file still starts with the bytes of a fingerprint; the empty one fits every file."""
    covered = _covered(fingerprint)
    return partition.size >= covered and (not covered or _spell(_head(partition, covered)) == fingerprint)


def generation(key: str) -> int:
    """Return which generation of its file a partition's key names, from 1."""
    _, mark, number = key.rpartition("@")
    return int(number) if mark and number.isdecimal() else 1


def identified(partition: Partition, known: Mapping[str, KnownFile]) -> Partition | None:
    """Return a listed file as the partition it is: with the key of its generation, and its fingerprint.

    `known` holds what commits say, by key. The file is read (its first bytes, one request) only where it is new or
    its size or time has changed. Where it has become smaller or starts with other bytes, it was rewritten: it is a new
    generation, which is logged. None where the file system fails: which generation it is will be seen at the next look.
    """
    key = _newest_key(partition.key, known)
    before = known.get(key)
    if before and (before.size, before.arrival_ms) == (partition.size, partition.arrival_ms):
        return replace(partition, key=key, fingerprint=before.fingerprint)
    try:
        head = _head(partition, min(partition.size, FINGERPRINT_BYTES))
    except PermissionError:
        # The reading refuses it, with a dead letter.
        return replace(partition, key=key)
    except Exception as error:  # noqa: BLE001 - file systems raise what they like
        logger.error("%s cannot be read now, the next look tries again: %s", partition.url, error)
        return None
    if before is None or _continues(partition, head, before):
        return replace(partition, key=key, fingerprint=_spell(head))
    renewed = f"{partition.key}@{generation(key) + 1}"
    logger.warning(
        "%s was rewritten under its name (it %s: %d bytes, %d were read): it is read from its start as %s",
        partition.url,
        "starts with other bytes" if partition.size >= before.size else "has become smaller",
        partition.size,
        before.size,
        printable(renewed),
    )
    return replace(partition, key=renewed, fingerprint=_spell(head))


def _continues(partition: Partition, head: bytes, before: KnownFile) -> bool:
    covered = _covered(before.fingerprint)
    has_same_start = not covered or _spell(head[:covered]) == before.fingerprint
    return partition.size >= before.size and has_same_start


def _newest_key(name: str, known: Mapping[str, KnownFile]) -> str:
    key, number = name, 2
    while (later := f"{name}@{number}") in known:
        key, number = later, number + 1
    return key


def _covered(fingerprint: str) -> int:
    return int(fingerprint.partition(":")[0] or 0)


def _spell(head: bytes) -> str:
    return f"{len(head)}:{xxhash.xxh3_64_hexdigest(head)}"


def _head(partition: Partition, size: int) -> bytes:
    return bytes(partition.fs.cat_file(partition.path, start=0, end=size)) if size else b""
