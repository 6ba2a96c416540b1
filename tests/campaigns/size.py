"""How large a campaign is: the short form runs with all tests, `make campaign` runs the long one."""

import os
from typing import Final

IS_LONG: Final = os.environ.get("WEIR_CAMPAIGN") == "long"


def of(short: int, long: int) -> int:
    """Return the number that goes with the form of this run."""
    return long if IS_LONG else short
