"""gRPC channels of clients: plain text or TLS, with the client's certificate and token from the settings."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from weir.serving.access.certificates import FromFiles
from weir.serving.access_config import ClientConfig

__all__ = ["AsyncChannel", "Channel", "SentToken", "bearer_token", "credentials_of"]

ChannelT = TypeVar("ChannelT")

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""Syntax of a bearer token (RFC 6750). Other text is not sent as a header: an error about the header would show it."""


class Reopened(Generic[ChannelT]):
    """A gRPC channel that is reopened when certificate files change; calls in progress finish on the old one.

    `plain` opens a channel without TLS, `secure` one with TLS. Raises `OSError` or `ValueError` if a file cannot be
    used.
    """

    def __init__(
        self,
        target: str,
        config: ClientConfig | None,
        options: Sequence[tuple[str, Any]],
        plain: Callable[..., ChannelT],
        secure: Callable[..., ChannelT],
    ) -> None:
        self._target, self._config, self._options = target, config or ClientConfig(), [*options, *_authority(target)]
        self._plain, self._secure = plain, secure
        self._token = SentToken.of(self._config)
        files = [self._config.ca_file, self._config.certificate_file, self._config.key_file]
        self._channels = FromFiles("certificates", [file for file in files if file is not None], self._opened)

    def open(self) -> ChannelT:
        """Return the current channel, reopened first if the certificate files have changed."""
        return self._channels.get()

    def _opened(self) -> ChannelT:
        config = self._config
        if not config.tls:
            return self._plain(self._target, self._options)
        name = [("grpc.ssl_target_name_override", config.server_name)] if config.server_name else []
        return self._secure(self._target, credentials_of(config, self._token), [*self._options, *name])


def _authority(target: str) -> list[tuple[str, str]]:
    """Return the channel option that sends the first of several addresses as authority.

    By default gRPC sends all addresses of the target, which servers may refuse.
    """
    scheme, _, addresses = target.partition(":")
    several = addresses.split(",") if scheme in {"ipv4", "ipv6"} else []
    return [("grpc.default_authority", several[0])] if len(several) > 1 else []


class Channel(Reopened[grpc.Channel]):
    """A channel for blocking calls."""

    def __init__(self, target: str, config: ClientConfig | None, options: Sequence[tuple[str, Any]]) -> None:
        super().__init__(target, config, options, grpc.insecure_channel, grpc.secure_channel)

    def close(self) -> None:
        """Close the connections."""
        self._channels.get().close()


class AsyncChannel(Reopened[grpc.aio.Channel]):
    """A channel for calls in the event loop in which it is created."""

    def __init__(self, target: str, config: ClientConfig | None, options: Sequence[tuple[str, Any]]) -> None:
        super().__init__(target, config, options, grpc.aio.insecure_channel, grpc.aio.secure_channel)

    async def close(self) -> None:
        """Close the connections."""
        await self._channels.get().close()


def credentials_of(config: ClientConfig, token: "SentToken | None") -> grpc.ChannelCredentials:
    """Return TLS credentials from the files of the settings, combined with a token if one is given.

    Raises `OSError` or `ValueError` if a file cannot be used.
    """
    credentials = _certificates(config)
    if token is None:
        return credentials
    _keep_threads()
    return grpc.composite_channel_credentials(credentials, grpc.metadata_call_credentials(token, "weir"))


@cache
def _keep_threads() -> grpc.Channel:
    """Return a channel that never connects; while it is open gRPC keeps its threads, which avoids a deadlock.

    Closing the last channel waits for these threads while it holds Python's lock (as of gRPC 1.85, see its pull request
    42247). A thread that releases the token of an earlier closed channel waits for that lock, so that the process would
    hang.
    """
    return grpc.insecure_channel("127.0.0.1:1")


def _certificates(config: ClientConfig) -> grpc.ChannelCredentials:
    key, certificate, authorities = (
        None if file is None else file.read_bytes()
        for file in (config.key_file, config.certificate_file, config.ca_file)
    )
    # Checked here: gRPC would only report that the connection failed.
    if authorities is not None:
        x509.load_pem_x509_certificates(authorities)
    if key is not None and certificate is not None:
        found = x509.load_pem_x509_certificate(certificate)
        if load_pem_private_key(key, None).public_key() != found.public_key():
            raise ValueError(f"{config.key_file} is not the key of {config.certificate_file}")
    return grpc.ssl_channel_credentials(authorities, key, certificate)


class SentToken(grpc.AuthMetadataPlugin):
    """Sends the current token from a file with each call."""

    def __init__(self, path: Path) -> None:
        self._token = FromFiles("the token", [path], lambda: bearer_token(path))

    @classmethod
    def of(cls, config: ClientConfig) -> "SentToken | None":
        """Return the token of ``token_file``; None if the setting is null. Raises `OSError` or `ValueError`."""
        return None if config.token_file is None else cls(config.token_file)

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:  # noqa: ARG002
        """Pass the authorization header of a call to gRPC."""
        callback((("authorization", f"Bearer {self._token.get()}"),), None)


def bearer_token(path: Path) -> str:
    """Read a bearer token from a file; raises `OSError`, or `ValueError` (without the text) if it is no token."""
    token = path.read_text().strip()
    if _TOKEN.fullmatch(token) is None:
        raise ValueError(f"{path} holds no bearer token")
    return token
