"""The settings of TLS, tokens and access rules of the server, and of its clients."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from weir.contracts.base.models import FrozenModel

__all__ = ["RIGHTS", "AuthConfig", "ClientConfig", "Right", "Rule", "TlsConfig"]

Right = Literal["Retrieve", "Embed", "GetInfo", "exact", "pin", "reflection"]
"""A right of a caller: to call a method, to search exactly, to pin a bundle version, or to use reflection."""

RIGHTS: Final[tuple[Right, ...]] = get_args(Right)

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Asymmetric algorithms only: with HMAC, every verifier of a token could also sign one."""

_LOCAL: Final = {"127.0.0.1", "::1", "localhost"}

# Made absolute, as `weir up` passes its settings to commands in other folders.
File = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


def _together(one: object, other: object, names: str) -> None:
    if (one is None) != (other is None):
        raise ValueError(f"{names} are set together or not at all")


class TlsConfig(FrozenModel):
    """The server's certificate, and whose certificates it asks clients for."""

    certificate_file: File | None = Field(
        default=None,
        description="PEM of the server's certificate and those that signed it, for gRPC and HTTP; read again when it "
        "changes; null: plain text",
    )
    key_file: File | None = Field(default=None, description="PEM of the certificate's private key, without a password")
    client_ca_file: File | None = Field(
        default=None,
        description="PEM of the authorities that sign clients' certificates: only clients with one are let in; null: "
        "clients need none",
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        _together(self.certificate_file, self.key_file, "certificate_file and key_file")
        if self.client_ca_file is not None and self.certificate_file is None:
            raise ValueError("client_ca_file needs certificate_file and key_file")
        return self


class Rule(FrozenModel):
    """Lets some callers do something; one without scopes, subjects and certificates is for every known caller."""

    to: tuple[Right, ...] = Field(
        default=RIGHTS,
        min_length=1,
        description="methods, and `exact` (search every item), `pin` (name a bundle version), `reflection`",
    )
    scopes: tuple[str, ...] = Field(default=(), description="tokens that have one of these in `scope_claim`")
    subjects: tuple[str, ...] = Field(default=(), description="tokens of one of these subjects")
    certificates: tuple[Annotated[str, Field(pattern="^(CN|DNS|URI|email|IP):.")], ...] = Field(
        default=(), description="client certificates that have one of these names, such as CN:monitor or URI:spiffe://x"
    )


class AuthConfig(FrozenModel):
    """Which tokens count, who may call what, and how often."""

    jwks: str | None = Field(
        default=None,
        description="keys that sign tokens (JWT): path of a JWKS file, read again when it changes, or an https URL; "
        "null: no tokens are asked for",
    )
    jwks_seconds: float = Field(
        default=300.0, gt=0, description="how often keys are fetched from a URL; at once for a key that is new, seconds"
    )
    issuer: str | None = Field(default=None, min_length=1, description="`iss` of every token")
    audience: str | None = Field(default=None, min_length=1, description="`aud` of every token, or one of them")
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "ES256", "EdDSA"), min_length=1, description="signatures that count"
    )
    leeway_seconds: float = Field(
        default=30.0, ge=0, le=600, description="how far the clocks of issuer and server may differ, seconds"
    )
    scope_claim: str = Field(
        default="scope",
        min_length=1,
        description="claim with scopes or roles: a list, or words in a string; dots lead into objects",
    )
    subject_claim: str = Field(default="sub", min_length=1, description="claim that names the caller")
    allow: tuple[Rule, ...] = Field(
        default=(Rule(),), description="a caller may do what any of these rules lets it do; by default, everything"
    )
    calls_per_second: float | None = Field(default=None, gt=0, description="calls of one caller; null: not limited")
    burst: int = Field(default=100, ge=1, description="calls that a caller who was quiet may make at once")

    @field_validator("jwks")
    @classmethod
    def _is_trusted(cls, jwks: str | None) -> str | None:
        if jwks is None or "://" not in jwks:
            return None if jwks is None else str(Path(jwks).expanduser().absolute())
        url = urlsplit(jwks)
        if url.scheme != "https" and not (url.scheme == "http" and url.hostname in _LOCAL):
            raise ValueError("must be the path of a file, or an https URL (http on this machine only)")
        return jwks

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.jwks is not None and (self.issuer is None or self.audience is None):
            raise ValueError("jwks needs issuer and audience: tokens for other services must not count here")
        return self


class ClientConfig(FrozenModel):
    """How a client of the server reaches it: `weir query`, `weir click`, `weir up`, the monitor and the page."""

    tls: bool = Field(default=False, description="speak TLS with the server")
    ca_file: File | None = Field(
        default=None, description="PEM of the authorities that sign the server's certificate; null: the public ones"
    )
    certificate_file: File | None = Field(
        default=None, description="PEM of the client's certificate, if it is asked for"
    )
    key_file: File | None = Field(default=None, description="PEM of its private key, without a password")
    token_file: File | None = Field(
        default=None, description="file with the bearer token to send; read again when it changes"
    )
    server_name: str | None = Field(
        default=None, min_length=1, description="name in the server's certificate, where it is not that of the target"
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        _together(self.certificate_file, self.key_file, "certificate_file and key_file")
        given = [name for name in ("ca_file", "certificate_file", "token_file", "server_name") if getattr(self, name)]
        if given and not self.tls:
            raise ValueError(f"{given[0]} needs tls = true: tokens are sent, and servers known, by TLS only")
        return self
