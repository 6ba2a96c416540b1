"""What is in Redis, and how to connect to it.

- ``weir:histories``: the position (`Position`), written in one transaction with the users that it speaks of;
- ``weir:u:<generation><key>``: a user (`weir.serving.shared.rows`); a load writes a generation of its own, and the
  position then names it, so that readers see the old one whole until they see the new one whole;
- ``weir:histories:writer``: the lease of the follower that writes; ``weir:histories:checked``: when (wall clock) it
  last knew that no commit is missing.

The database holds nothing else: its number of keys shows whether some were lost.
"""

import os
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from pydantic import BaseModel, ConfigDict
from redis.backoff import NoBackoff
from redis.retry import Retry

from weir.contracts import UserError, UserKeys
from weir.contracts.commits import Cursor

__all__ = ["CHECKED", "LEASE", "POSITION", "UNCOUNTED", "Position", "connect", "keys_of", "place_of", "strangers"]

POSITION: Final = b"weir:histories"
LEASE: Final = b"weir:histories:writer"
CHECKED: Final = b"weir:histories:checked"
USERS: Final = b"weir:u:"
UNCOUNTED: Final = -1
PASSWORD: Final = "WEIR_REDIS_PASSWORD"  # noqa: S105 - its name
"""The variable with the password, so that no URL need hold it."""


class Position(BaseModel):
    """How far the histories are taken in: up to the commit before `number`, whose checksum identifies the store.

    `sequence` panes are committed before it, of which the histories hold `covered`; records have `length` items.
    At least `keys` users were there when it was written (`UNCOUNTED`: others may be left of an earlier load), and Redis
    had `evicted` so many keys.
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
    """Return a client, which connects on first use and whose commands fail after `timeout` seconds, without retries.

    It is a `redis.Redis` that returns bytes: its types allow for text as well.

    Raises `UserError` for what is no URL of Redis.
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
    """Return the keys of users."""
    prefix = USERS + generation.encode()
    data = users.tobytes()
    return [prefix + data[at : at + 8] for at in range(0, len(data), 8)]


def strangers(database: Any, generations: Iterable[str]) -> Iterable[bytes]:
    """Yield the keys of users of other generations."""
    kept = tuple(USERS + generation.encode() for generation in generations)
    yield from (key for key in database.scan_iter(USERS + b"*", count=1000) if not key.startswith(kept))
