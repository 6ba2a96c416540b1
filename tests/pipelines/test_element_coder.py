import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.coders.typecoders import registry
from apache_beam.typehints import Tuple
from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.element_coder import ElementCoder
from weir.pipelines.stream.batch import Batch
from weir.pipelines.stream.slices import Slice
from weir.pipelines.transforms.deduplicate import ShardWindow
from weir.pipelines.transforms.split import Keyed, Piece
from weir.readers import Block, BlockId, Lines


@pytest.mark.parametrize("kind", [Batch, Block, Keyed, Piece, ShardWindow, Slice])
def test_beam_uses_it_for_all_that_holds_rows(kind: type) -> None:
    assert isinstance(registry.get_coder(kind), ElementCoder)
    assert isinstance(registry.get_coder(Tuple[int, kind]).coders()[1], ElementCoder)


@given(st.lists(st.text(max_size=20), max_size=50))
def test_what_is_encoded_comes_back_and_its_size_is_known_before(ids: list[str]) -> None:
    piece = Piece("a", 10_000, pa.RecordBatch.from_pydict({"item_id": pa.array(ids, pa.string())}))
    encoded = ElementCoder().encode(piece)
    assert ElementCoder().decode(encoded) == piece
    assert 0 <= len(encoded) - piece.nbytes < 1000


def test_a_block_is_as_large_as_its_lines() -> None:
    lines = Lines([b"{}", b"[1]"], np.arange(2))
    assert [Block(BlockId("a", 0), content).nbytes for content in (lines, None)] == [5, 0]


def test_to_say_how_large_an_element_is_does_not_encode_it() -> None:
    """A function cannot be pickled, so encoding would fail."""
    piece = Piece(lambda: None, 0, pa.RecordBatch.from_pydict({"item_id": ["one"]}))  # type: ignore[arg-type]
    assert beam.coders.TupleCoder([beam.coders.VarIntCoder(), ElementCoder()]).estimate_size((1, piece)) > 0
    with pytest.raises(Exception, match="pickle"):
        ElementCoder().encode(piece)
