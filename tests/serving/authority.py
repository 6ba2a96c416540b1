"""Authorities of certificates and issuers of tokens, made in memory; what a process needs is written to files."""

import datetime
import ipaddress
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER = "https://issuer.example"
AUDIENCE = "weir"


def _pem(key: Any) -> bytes:
    encryption = serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))


@dataclass
class Authority:
    """Signs certificates; files go to `folder`."""

    folder: Path
    name: str = "ca"

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        made = self._builder(self._subject, self._key, is_authority=True).sign(self._key, hashes.SHA256())
        self.file = self.folder / f"{self.name}.pem"
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: Any, *, is_authority: bool) -> x509.CertificateBuilder:
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        return (
            x509.CertificateBuilder(self._subject, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )

    def pair(self, name: str, *others: x509.GeneralName) -> tuple[bytes, bytes]:
        """Return certificate and key of a name, for this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *others]
        builder = self._builder(subject, key, is_authority=False)
        made = builder.add_extension(x509.SubjectAlternativeName(here), critical=False).sign(self._key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM), _pem(key)

    def files(self, name: str, *others: x509.GeneralName) -> dict[str, str]:
        """Write certificate and key, and return the settings that name them."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        for file, data in zip((certificate, key), self.pair(name, *others), strict=True):
            file.write_bytes(data)
        return {"certificate_file": str(certificate), "key_file": str(key)}


@dataclass
class Issuer:
    """Signs tokens, with keys that it publishes."""

    kinds: dict[str, str] = field(default_factory=lambda: {"one": "EC"})

    def __post_init__(self) -> None:
        self.keys: dict[str, Any] = {
            kid: rsa.generate_private_key(65537, 2048) if kind == "RSA" else ec.generate_private_key(ec.SECP256R1())
            for kid, kind in self.kinds.items()
        }

    @property
    def jwks(self) -> dict[str, Any]:
        """The published document."""
        entries = []
        for kid, key in self.keys.items():
            algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
            entries.append(json.loads(algorithm.to_jwk(key.public_key())) | {"kid": kid, "use": "sig"})
        return {"keys": entries}

    def publish(self, file: Path) -> str:
        """Write the document, as a whole, and return its path."""
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(self.jwks))
        fresh.replace(file)
        return str(file)

    def token(self, kid: str = "one", *, without: tuple[str, ...] = (), **claims: Any) -> str:
        """Return a token that is valid for an hour, unless `claims` say otherwise."""
        now = int(time.time())
        known = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": now + 3600, "nbf": now, "iat": now} | claims
        key = self.keys[kid]
        algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        payload = {name: value for name, value in known.items() if name not in without}
        return jwt.encode(payload, key, algorithm, headers={"kid": kid})

    def public_pem(self, kid: str = "one") -> bytes:
        """Return a public key, which is no secret."""
        public = self.keys[kid].public_key()
        return bytes(public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
