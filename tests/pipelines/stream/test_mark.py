from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.stream.mark import Mark, MarkCoder

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, INT64)
def test_a_mark_survives_its_coder(start: int, watermark_ms: int) -> None:
    encoded = MarkCoder().encode(Mark(start, watermark_ms))
    assert encoded == start.to_bytes(8, "big", signed=True) + watermark_ms.to_bytes(8, "big", signed=True)
    assert MarkCoder().decode(encoded) == Mark(start, watermark_ms)
