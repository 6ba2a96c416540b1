from unittest.mock import patch

import numpy as np
import pytest
import torch

from weir.sketches import FrequencyView
from weir.trainer.items import stored
from weir.trainer.items.rows import TableRows
from weir.trainer.items.table import ItemTable
from weir.trainer.log_q.row_counts import RowCounts
from weir.trainer.log_q.stored import counted


@pytest.mark.parametrize("lives", [(60.0,), (60.0, 600.0)])
def test_counts_come_piece_by_piece_in_the_order_of_rows(lives: tuple[float, ...]) -> None:
    counts = RowCounts(FrequencyView(lives), ItemTable(16), torch.zeros(16, 1))
    counts.kept.units.copy_(torch.arange(16.0 * len(lives)).view(16, -1))
    counts.kept.chosen.copy_(torch.arange(16) % len(lives))
    wanted = counts.state_dict()
    with patch.object(stored, "_AT_ONCE", 5):
        found = counted(counts)
        assert found.keys() == wanted.keys() - {"times"}
        for line, lines in found.items():
            assert (lines.dtype, lines.shape) == (wanted[line].dtype, tuple(wanted[line].shape))
            assert torch.equal(torch.cat(list(lines)), wanted[line])
        some = TableRows(np.arange(1, 16, 2))
        for line, lines in counted(counts, some).items():
            assert lines.shape == tuple(wanted[line][some].shape)
            assert torch.equal(torch.cat(list(lines)), wanted[line][some])
