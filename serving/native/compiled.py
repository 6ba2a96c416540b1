"""Import of the compiled front, the optional package ``weir_front`` built from the folder ``native``."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Compiled", "compiled"]

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Compiled(Protocol):
    """The contents of the package ``weir_front``."""

    @property
    def Front(self) -> Callable[..., Any]:  # noqa: N802 - a class
        """The class that listens on sockets; `weir.serving.native.front` uses it."""

    def look_up(self, wanted: I64, keys: I64, rows: I64, later_keys: I64, later_rows: I64, /) -> I64:
        """Return the rows of keys (n,), as `ItemRows.look_up` does."""

    def tower_inputs(self, rows: I64, lengths: I64, length: int, first: int, /) -> tuple[I64, Bools]:
        """Return the tower's input rows of n histories, (n, length), and their mask.

        `rows` are the concatenated histories, -1 for unknown items, with `lengths` (n,) rows each. Only the newest
        `length` known ones count; `first` is added to them.
        """


def compiled() -> Compiled:
    """Import the package; raises `ValueError` if it is not installed."""
    try:
        import weir_front  # noqa: PLC0415 - a package of its own, which is optional
    except ModuleNotFoundError:
        raise ValueError(
            "serving.front = native needs the package weir-front: `make native` builds it from weir's sources with "
            "Rust, and so does `pip install ./native`"
        ) from None
    package: Compiled = weir_front
    return package
