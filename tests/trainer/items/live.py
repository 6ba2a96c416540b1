from collections.abc import Set

import numpy as np

from weir.trainer.items.placement import LiveRows
from weir.trainer.items.rows import FIRST_ITEM


def live_rows(rows: Set[int]) -> LiveRows:
    """Return rows of items in the form of the trainer, with no free one at the end."""
    end = max(rows, default=FIRST_ITEM - 1) + 1
    return LiveRows(end, np.array([row for row in range(FIRST_ITEM, end) if row not in rows], np.int64))
