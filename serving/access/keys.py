"""The public keys that verify tokens, from a JWKS file or URL, kept up to date."""

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
"""Keys by key id; under None the key without an id, or the only key."""

_TYPES: Final = ("RSA", "EC", "OKP")
"""Types of public keys: a shared secret (``oct``) in the document must never verify anything."""

_FETCH_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 5.0
"""Least seconds between two fetches for unknown key ids: anyone can invent such ids."""


class FileKeys:
    """Keys from a file, reloaded when it changes; the constructor raises `OSError` or `ValueError`."""

    def __init__(self, path: Path) -> None:
        def read() -> Keys:
            try:
                return parsed(json.loads(path.read_bytes()))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path} is no JWKS: {error}") from None

        self._keys = FromFiles("the keys of tokens", [path], read)

    async def get(self, kid: str | None) -> Keys:  # noqa: ARG002 - those of a URL look at it
        """Return the keys; a new object whenever they have changed."""
        return self._keys.get()


class UrlKeys:
    """Keys from a URL, fetched every `every` seconds and for an unknown key id; old keys stay if a fetch fails."""

    def __init__(self, url: str, every: float) -> None:
        self._client = PyJWKClient(url, cache_jwk_set=False, timeout=_FETCH_SECONDS)
        self._every = every
        self._keys: Keys = {}
        self._tried = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._problems = Problems(log)

    async def get(self, kid: str | None) -> Keys:
        """Return the keys, fetched again if the id is unknown; raises `KeysNotLoadedError` if there are none."""
        age = time.monotonic() - self._tried
        if kid not in self._keys and (self._fetching is not None or age > _PAUSE_SECONDS):
            # Shielded: a caller that disconnects must not cancel the fetch that others wait for.
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
            # Reported as an `OSError`, which is expected: one line, without a traceback.
            self._problems.report(OSError(str(error)), "keys of tokens could not be fetched, those from before stay")
        finally:
            self._tried, self._fetching = time.monotonic(), None


def keys_of(where: str, every: float) -> FileKeys | UrlKeys:
    """Return the keys of a path or URL; a URL is fetched again every `every` seconds."""
    return UrlKeys(where, every) if "://" in where else FileKeys(Path(where))


def parsed(document: Any) -> Keys:
    """Return the usable public keys of a JWKS document; raises `ValueError` if there is none."""
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
