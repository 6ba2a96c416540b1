"""The address of a topic: ``kafka://host:port[,host:port]/topic``."""

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Topic"]

_SCHEME: Final = "kafka://"
_FORM: Final = "kafka://host:port[,host:port]/topic"
_SERVER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True)
class Topic:
    """A topic: the brokers to ask first, ``host:port``, and its name."""

    servers: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, url: str) -> "Topic":
        """Return the topic at a URL; raises `ValueError`, which names the part that is wrong."""
        servers, slash, name = url.removeprefix(_SCHEME).partition("/")
        if "@" in servers:
            raise ValueError(f"a topic is {_FORM}, without a user: that is the setting pipeline.kafka.user")
        for server in servers.split(","):
            if not _SERVER.fullmatch(server) or int(server.rpartition(":")[2]) > 65_535:
                raise ValueError(f"{server!r} is no broker: a topic is {_FORM}")
        if not slash or not _NAME.fullmatch(name) or name in {".", ".."}:
            allowed = "letters, digits, '.', '_' and '-', at most 249"
            raise ValueError(f"{name!r} is no name of a topic ({allowed}): a topic is {_FORM}")
        return cls(tuple(servers.split(",")), name)

    def __str__(self) -> str:
        return f"{_SCHEME}{','.join(self.servers)}/{self.name}"
