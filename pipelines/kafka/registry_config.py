"""The settings for reaching a schema registry; a secret is in none of them."""

from typing import Final, Self

from pydantic import Field, field_validator, model_validator

from weir.contracts.models import FrozenModel

__all__ = ["REGISTRY_PASSWORD", "RegistryConfig"]

REGISTRY_PASSWORD: Final = "WEIR_REGISTRY_PASSWORD"  # noqa: S105 - the name of a variable
"""The environment variable with the password, where no file has it."""


class RegistryConfig(FrozenModel):
    """Where the schemas of Avro messages are; whatever speaks the protocol of Confluent's registry."""

    url: str | None = Field(default=None, description="address of the registry, such as https://registry:8081")
    user: str | None = Field(
        default=None, min_length=1, description="name of the user, where the registry asks for one"
    )
    password_file: str | None = Field(
        default=None,
        min_length=1,
        description="file that holds the user's password; without it the environment variable "
        f"{REGISTRY_PASSWORD} does",
    )
    ca_file: str | None = Field(
        default=None, min_length=1, description="certificates (PEM) that the registry is verified with"
    )

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError(f"{value} is no address of a registry: it must start with http:// or https://")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        given = [name for name in ("user", "password_file", "ca_file") if getattr(self, name) is not None]
        if self.url is None and given:
            raise ValueError(f"{given[0]} is set, but no registry: set url, too")
        if self.password_file is not None and self.user is None:
            raise ValueError("password_file is set, but no user: set user, too")
        return self
