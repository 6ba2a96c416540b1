"""What ends a process at a chosen change to its store."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from weir.contracts import Store

__all__ = ["KilledError", "killed_at"]


class KilledError(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(change: int) -> Iterator[None]:
    """End the process before its change number so many to a store; the removal of a folder ends after one file."""
    left = change

    def dying(real: Any, name: str) -> Any:
        def act(self: Store, *args: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                if name == "remove" and (inside := sorted(self.find(args[0]))):
                    real(self, inside[0])
                raise KilledError
            left -= 1
            return real(self, *args, **more)

        return act

    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "write_with", "create", "remove", "remove_if_empty"):
            patch.setattr(Store, name, dying(getattr(Store, name), name))
        yield
