"""The server's TLS certificate, reloaded when its files change; open connections keep the earlier certificate."""

import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from weir.serving.access_config import TlsConfig

__all__ = ["Certificate", "FromFiles", "certificate_of", "grpc_credentials", "http_context", "names_of"]

log = logging.getLogger(__name__)

Made = TypeVar("Made")

_LOOK_SECONDS: Final = 1.0
_Stamp = tuple[tuple[int, int, int], ...]

_KINDS: Final[dict[type[x509.GeneralName], str]] = {
    x509.UniformResourceIdentifier: "URI",
    x509.DNSName: "DNS",
    x509.RFC822Name: "email",
    x509.IPAddress: "IP",
}


class FromFiles(Generic[Made]):
    """An object made from files, and made again when the files change; if that fails, the earlier object stays.

    Files that are replaced one by one do not match for a moment: `make` must raise an error then. Thread-safe.

    Parameters
    ----------
    what
        Name of the object in the log.
    files
        Checked for changes at most once in `seconds`, one second by default.
    make
        Creates the object; raises `OSError` or `ValueError` for unusable files. The constructor calls `make` too, and
        passes its error on.
    """

    def __init__(
        self, what: str, files: Sequence[Path], make: Callable[[], Made], seconds: float | None = None
    ) -> None:
        self._what, self._files, self._make, self._seconds = what, files, make, seconds
        self._problem = ""
        self._lock = threading.Lock()
        self._stamp = _stamp(files)
        self._looked = time.monotonic()
        self._made = make()

    def get(self) -> Made:
        """Return the object made from the newest usable files; the same object until the files change."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= (_LOOK_SECONDS if self._seconds is None else self._seconds):
                self._looked = now
                self._look()
            return self._made

    def _look(self) -> None:
        try:
            stamp = _stamp(self._files)
            if stamp == self._stamp:
                return
            # Set before the files are read: a change meanwhile is noticed at the next check.
            self._stamp = stamp
            self._made = self._make()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a file, what was read before is good
            self._stamp = ()
            if str(error) != self._problem:
                log.error("%s: cannot be read again, what was read before stays: %s", self._what, error)
            self._problem = str(error)
        else:
            self._problem = ""
            log.info("%s: read again", self._what)


def _stamp(files: Sequence[Path]) -> _Stamp:
    found = [file.stat() for file in files]
    return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


class Certificate(NamedTuple):
    """A server's certificate chain and private key, and the authorities that sign clients' certificates; all as PEM.

    `authorities` is None if clients need no certificate.
    """

    chain: bytes
    key: bytes
    authorities: bytes | None


def certificate_of(config: TlsConfig, seconds: float | None = None) -> FromFiles[Certificate]:
    """Return the server's certificate, reloaded when its files change; the files are checked every `seconds`.

    Raises `OSError` or `ValueError` if a file cannot be used.
    """
    return FromFiles("the certificate for gRPC", _files(config), lambda: _read(config), seconds)


def grpc_credentials(config: TlsConfig) -> grpc.ServerCredentials:
    """Return gRPC server credentials that reload a changed certificate; raises `OSError` or `ValueError`."""
    certificates = certificate_of(config)
    served = certificates.get()

    def newest() -> Any:
        nonlocal served
        before, served = served, certificates.get()
        return None if served is before else _grpc_configuration(served)  # None: unchanged

    return grpc.dynamic_ssl_server_credentials(
        _grpc_configuration(served), newest, require_client_authentication=config.client_ca_file is not None
    )


def http_context(config: TlsConfig, *, asks_clients: bool = True) -> ssl.SSLContext:
    """Return an HTTP server's TLS context that reloads a changed certificate; raises `OSError` or `ValueError`.

    If `client_ca_file` is set, clients must show a certificate, unless `asks_clients` is false.
    """

    def make() -> ssl.SSLContext:
        certificate, key, *authorities = _files(config)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        if asks_clients and authorities:
            context.verify_mode = ssl.CERT_REQUIRED
            # No session resumption: a resumed session would not be checked against changed authorities.
            context.minimum_version, context.num_tickets = ssl.TLSVersion.TLSv1_3, 0
            context.load_verify_locations(authorities[0])
        return context

    contexts = FromFiles("the certificate for HTTP", _files(config), make)
    first = contexts.get()

    def newest(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:  # noqa: ARG001
        connection.context = contexts.get()

    # Called for each connection, even if the client sends no server name.
    first.sni_callback = newest
    return first


@lru_cache(1024)
def names_of(certificate: bytes) -> tuple[str, ...]:
    """Return the names in a verified certificate (PEM), such as ``URI:...``, ``DNS:...`` and ``CN:...``."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        common = [each.value for each in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        others = [*_other_names(found)]
    except ValueError:
        # OpenSSL accepts some certificates that violate the standard: their holder gets no name.
        return ()
    return (*others, *(f"CN:{name}" for name in common if isinstance(name, str)))


def _other_names(certificate: x509.Certificate) -> Iterator[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    for name in names:
        if kind := _KINDS.get(type(name)):
            yield f"{kind}:" + str(name.value)


def _files(config: TlsConfig) -> list[Path]:
    return [file for file in (config.certificate_file, config.key_file, config.client_ca_file) if file is not None]


def _read(config: TlsConfig) -> Certificate:
    chain, key, *authorities = (file.read_bytes() for file in _files(config))
    # gRPC would accept a key that does not match, and then fail every handshake.
    if _private_key(key, config.key_file).public_key() != x509.load_pem_x509_certificate(chain).public_key():
        raise ValueError(f"{config.key_file} is not the key of {config.certificate_file}")
    x509.load_pem_x509_certificates(authorities[0] if authorities else chain)
    return Certificate(chain, key, authorities[0] if authorities else None)


def _private_key(data: bytes, file: Path | None) -> Any:
    try:
        return load_pem_private_key(data, None)
    except TypeError:
        raise ValueError(f"{file} is encrypted: give a key without a password") from None


def _grpc_configuration(served: Certificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(served.key, served.chain)], served.authorities)
