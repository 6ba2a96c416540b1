"""Host names of a test's own: processes that see another /etc/hosts, which the test rewrites while they run.

On Linux all of 127.0.0.0/8 is loopback, so that a server may move from one address to another.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

__all__ = ["Hosts", "named_hosts", "possible_hosts"]

_MOUNT: Final = 'mount --bind "$0" /etc/hosts && exec "$@"'
_WAYS: Final = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])
"""As root, and as a user who may have namespaces."""


@dataclass(frozen=True)
class Hosts:
    """Names that the processes of `command` know; `way` is how they get a view of files of their own."""

    file: Path
    way: Sequence[str]

    def set(self, names: Mapping[str, str]) -> None:
        """Give names their addresses; others are unknown."""
        known = "".join(f"{address} {name}\n" for name, address in names.items())
        # In place: what is mounted is this file.
        self.file.write_text(f"127.0.0.1 localhost\n{known}")

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs another one which knows the names."""
        return [*self.way, "sh", "-c", _MOUNT, str(self.file), *command]


def possible_hosts(folder: Path) -> Hosts | None:
    """Return an empty table of names; None if a process cannot have an /etc/hosts of its own."""
    for way in _WAYS:
        hosts = Hosts(folder / "hosts", way)
        hosts.set({})
        try:
            subprocess.run(hosts.command(["true"]), check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return hosts
    return None


def named_hosts(folder: Path) -> Hosts:
    """Return names, none of them known yet; skips the test where there can be none."""
    if (hosts := possible_hosts(folder)) is None:
        pytest.skip("no mount namespace, in which a name moves to another address: needs root, or user namespaces")
    return hosts
