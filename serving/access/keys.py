"""The public keys that sign tokens, of a file or a URL (JWKS), in their newest form."""

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any, Final

from jwt import PyJWK, PyJWKClient
from jwt.exceptions import PyJWTError

from weir.serving.access.errors import KeysNotLoadedError
from weir.serving.access.files import FromFiles
from weir.serving.problems import Problems

__all__ = ["FileKeys", "Keys", "UrlKeys", "keys_of"]

log = logging.getLogger(__name__)

Keys = dict[str | None, PyJWK]
"""By key id; a single key without an id is under None, as is a single one altogether."""

_TYPES: Final = ("RSA", "EC", "OKP")
"""Public keys: a secret (``oct``) in the document must never verify anything."""

_FETCH_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 5.0
"""Between two fetches for key ids that are unknown: anyone can invent such ids."""


class FileKeys:
    """Keys of a file, read again when it changes; raises `OSError` or `ValueError` at the start."""

    def __init__(self, path: Path) -> None:
        def read() -> Keys:
            try:
                return parsed(json.loads(path.read_bytes()))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path} is no JWKS: {error}") from None

        self._keys = FromFiles("the keys of tokens", [path], read)

    async def get(self, kid: str | None) -> Keys:  # noqa: ARG002 - those of a URL look at it
        """Return the keys; another object whenever they have changed."""
        return self._keys.get()


class UrlKeys:
    """Keys of a URL: fetched now and then, and for a key id that is new. What was fetched stays while it is away."""

    def __init__(self, url: str, every: float) -> None:
        self._client = PyJWKClient(url, cache_jwk_set=False, timeout=_FETCH_SECONDS)
        self._every = every
        self._keys: Keys = {}
        self._tried = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._problems = Problems(log)

    async def get(self, kid: str | None) -> Keys:
        """Return the keys, fetched again where the id is unknown; raises `KeysNotLoadedError` where there are none."""
        age = time.monotonic() - self._tried
        if kid not in self._keys and (self._fetching is not None or age > _PAUSE_SECONDS):
            # One caller who goes must not end the fetch that others wait for.
            await asyncio.shield(self._fetched())
        elif age > self._every:
            self._fetched()
        if not self._keys:
            raise KeysNotLoadedError
        return self._keys

    def _fetched(self) -> "asyncio.Task[None]":
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch(), name="fetching keys of tokens")
        return self._fetching

    async def _fetch(self) -> None:
        try:
            self._keys = parsed(await asyncio.to_thread(self._client.fetch_data))
            self._problems.over()
        except Exception as error:  # noqa: BLE001 - whatever a server answers, the keys from before are good
            # As one that is expected: it takes a line.
            self._problems.report(OSError(str(error)), "keys of tokens could not be fetched, those from before stay")
        finally:
            self._tried, self._fetching = time.monotonic(), None


def keys_of(where: str, every: float) -> FileKeys | UrlKeys:
    """Return the keys of a path or URL, the latter fetched again after so many seconds."""
    return UrlKeys(where, every) if "://" in where else FileKeys(Path(where))


def parsed(document: Any) -> Keys:
    """Return the usable public keys of a JWKS; raises `ValueError` where there is none."""
    entries = document.get("keys") if isinstance(document, dict) else None
    found: Keys = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("kty") in _TYPES and entry.get("use", "sig") == "sig":
            kid = entry.get("kid")
            try:
                found[kid if isinstance(kid, str) else None] = PyJWK(entry)
            except (PyJWTError, ValueError, TypeError, AttributeError):  # its numbers may be of any type
                log.warning("a key of tokens cannot be used: kid %.64r, kty %.16r", kid, entry["kty"])
    if not found:
        raise ValueError("it holds no public key that can be used")
    if len(found) == 1:
        found[None] = next(iter(found.values()))
    return found
