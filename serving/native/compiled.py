"""The package of the compiled front, which is optional: built from the folder ``native`` of weir's sources."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Compiled", "compiled"]

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Compiled(Protocol):
    """What the package has."""

    @property
    def Front(self) -> Callable[..., Any]:  # noqa: N802 - a class
        """Listens on a socket; `weir.serving.native.front` uses it."""

    def look_up(self, wanted: I64, keys: I64, rows: I64, later_keys: I64, later_rows: I64, /) -> I64:
        """Return what `ItemRows.look_up` does of keys (n,)."""

    def tower_inputs(self, rows: I64, lengths: I64, length: int, first: int, /) -> tuple[I64, Bools]:
        """Return what the tower reads of n histories, (n, length), and the mask.

        Their `rows`, -1 where not known, are one after the other, `lengths` (n,) of them; the newest `length` known
        ones count, with `first` added.
        """


def compiled() -> Compiled:
    """Return the package; raises `ValueError` where it is not installed."""
    try:
        import weir_front  # noqa: PLC0415 - a package of its own, which is optional
    except ModuleNotFoundError:
        raise ValueError(
            "serving.front = native needs the package weir-front: `make native` builds it from weir's sources with "
            "Rust, and so does `pip install ./native`"
        ) from None
    package: Compiled = weir_front
    return package
