"""Which users have been counted, in a few bytes and without their keys."""

import base64
import zlib
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from weir.contracts import Key
from weir.contracts.variants import slot_of

__all__ = ["CountedUsers"]

_SLOTS: Final = 1 << 20
"""Users share a slot at random: of 100,000 users about 5 % are taken for counted and left out, whatever they do."""


def _empty() -> npt.NDArray[np.uint8]:
    return np.zeros(_SLOTS // 8, np.uint8)


@dataclass
class CountedUsers:
    """A bit for each slot of users; slots differ from challenger to challenger."""

    challenger: str
    _bits: npt.NDArray[np.uint8] = field(default_factory=_empty)

    @classmethod
    def decode(cls, challenger: str, text: str) -> Self:
        """Return what `encode` has returned; "" stands for nobody."""
        if not text:
            return cls(challenger)
        data = zlib.decompress(base64.b64decode(text))
        return cls(challenger, np.frombuffer(data, np.uint8).copy())

    def encode(self) -> str:
        """Return it as text."""
        return base64.b64encode(zlib.compress(self._bits.tobytes())).decode()

    def __contains__(self, user: Key) -> bool:
        place, bit = self._place(user)
        return bool(self._bits[place] & bit)

    def add(self, user: Key) -> None:
        """Note that a user is counted."""
        place, bit = self._place(user)
        self._bits[place] |= bit

    def _place(self, user: Key) -> tuple[int, int]:
        slot = slot_of(user, self.challenger, _SLOTS)
        return slot // 8, 1 << slot % 8
