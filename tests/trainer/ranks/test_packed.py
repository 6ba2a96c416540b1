import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.ranks.packed import packed, unpacked

TYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool]
SHAPES = st.lists(st.integers(0, 3), max_size=2)


@given(st.integers(0, 5), st.lists(st.tuples(st.sampled_from(TYPES), SHAPES), min_size=1, max_size=5))
def test_lines_come_out_as_they_went_in_whatever_their_number(count: int, kinds: list) -> None:  # type: ignore[type-arg]
    parts = tuple((100 * torch.randn(count, *shape)).to(dtype) for dtype, shape in kinds)
    lines = packed(parts)
    assert lines.dtype == torch.uint8
    assert len(lines) == count
    order = torch.randperm(count)
    for given_, found in zip(parts, unpacked(lines[order], parts), strict=True):
        assert found.dtype == given_.dtype
        assert torch.equal(found, given_[order])


def test_nothing_may_have_any_strides() -> None:
    nothing = (torch.randn(0, 1) * 2, torch.empty(2, 3).t()[:0], torch.empty(0, dtype=torch.int64))
    lines = packed(nothing)
    assert lines.shape == (0, 4 + 8 + 8)
    assert [one.shape for one in unpacked(lines, nothing)] == [one.shape for one in nothing]


def test_not_a_number_keeps_its_bits() -> None:
    odd = torch.tensor([0x7FA00001, 0x7FC00000, -1], dtype=torch.int32).view(torch.float32)
    [found] = unpacked(packed((odd,)), (odd,))
    assert torch.equal(found.view(torch.int32), odd.view(torch.int32))


def test_a_single_number_may_have_any_stride() -> None:
    one = torch.tensor(7).expand(1)
    [found] = unpacked(packed((one,)), (one,))
    assert found.tolist() == [7]
