"""The one way of clients to the server: plain text or TLS, with the certificate and token that the settings name."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from serving.access.config import ClientConfig
from serving.access.files import FromFiles

__all__ = ["Channel", "SentToken", "bearer_token", "credentials_of"]

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750. Anything else is not put into a header, whose errors would show it."""


class Channel:
    """A gRPC channel that is opened again when the files of certificates change; calls under way end on the old one.

    Raises `OSError` or `ValueError` where a file cannot be used.
    """

    def __init__(self, target: str, config: ClientConfig | None, options: Sequence[tuple[str, Any]]) -> None:
        self._target, self._config, self._options = target, config or ClientConfig(), list(options)
        self._token = SentToken.of(self._config)
        files = [self._config.ca_file, self._config.certificate_file, self._config.key_file]
        self._channels = FromFiles("certificates", [file for file in files if file is not None], self._opened)

    def open(self) -> grpc.Channel:
        """Return the channel to call on now."""
        return self._channels.get()

    def close(self) -> None:
        """Close the connections."""
        self._channels.get().close()

    def _opened(self) -> grpc.Channel:
        config = self._config
        if not config.tls:
            return grpc.insecure_channel(self._target, self._options)
        name = [("grpc.ssl_target_name_override", config.server_name)] if config.server_name else []
        return grpc.secure_channel(self._target, credentials_of(config, self._token), [*self._options, *name])


def credentials_of(config: ClientConfig, token: "SentToken | None") -> grpc.ChannelCredentials:
    """Return what a channel with TLS needs, as the files are now; raises `OSError` or `ValueError`."""
    credentials = _certificates(config)
    if token is None:
        return credentials
    return grpc.composite_channel_credentials(credentials, grpc.metadata_call_credentials(token, "weir"))


def _certificates(config: ClientConfig) -> grpc.ChannelCredentials:
    key, certificate, authorities = (
        None if file is None else file.read_bytes()
        for file in (config.key_file, config.certificate_file, config.ca_file)
    )
    # gRPC would only say that the connection failed.
    if authorities is not None:
        x509.load_pem_x509_certificates(authorities)
    if key is not None and certificate is not None:
        found = x509.load_pem_x509_certificate(certificate)
        if load_pem_private_key(key, None).public_key() != found.public_key():
            raise ValueError(f"{config.key_file} is not the key of {config.certificate_file}")
    return grpc.ssl_channel_credentials(authorities, key, certificate)


class SentToken(grpc.AuthMetadataPlugin):
    """Sends the token that a file holds now."""

    def __init__(self, path: Path) -> None:
        self._token = FromFiles("the token", [path], lambda: bearer_token(path))

    @classmethod
    def of(cls, config: ClientConfig) -> "SentToken | None":
        """Return the token that the settings name; raises `OSError` or `ValueError`."""
        return None if config.token_file is None else cls(config.token_file)

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:  # noqa: ARG002
        """Give gRPC the header of a call."""
        callback((("authorization", f"Bearer {self._token.get()}"),), None)


def bearer_token(path: Path) -> str:
    """Return the token in a file; raises `OSError`, or `ValueError` for what is none, without showing it."""
    token = path.read_text().strip()
    if _TOKEN.fullmatch(token) is None:
        raise ValueError(f"{path} holds no bearer token")
    return token
