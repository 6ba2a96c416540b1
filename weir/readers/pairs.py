"""Texts of pairs to blocks: a user, a space and an item per line, a user's lines in order of time."""

import gzip
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.csv

from weir.readers.blocks import Block, BlockId, Chunk, TableRows
from weir.readers.config import LogColumns
from weir.readers.log_file import LogFile
from weir.readers.sources import has_ending

__all__ = ["read_pairs"]


def read_pairs(file: LogFile, chunk: Chunk, names: LogColumns) -> Iterator[Block]:
    """Yield a text, gzipped or not, as one block of rows without times; raises for a line that is no pair."""
    key, data = chunk.partition.key, file.read()
    if has_ending(key, [".gz"]):
        data = gzip.decompress(data)
    if not data.strip():
        return
    header = [names.user_id, names.item_id]
    table = pa.csv.read_csv(
        pa.BufferReader(data),
        pa.csv.ReadOptions(column_names=header),
        pa.csv.ParseOptions(delimiter=" "),
        pa.csv.ConvertOptions(column_types=dict.fromkeys(header, pa.string())),
    )
    yield Block(BlockId(key, 0), TableRows(table, np.arange(len(table))), (), len(table))
