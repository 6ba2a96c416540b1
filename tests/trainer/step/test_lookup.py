"""Looked-up vectors beside plain indexing."""

from weakref import ref

import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from weir.trainer.step.lookup import Lookup

ROWS = 6
INDEX = arrays.arrays("int64", arrays.array_shapes(min_dims=1, max_dims=2, max_side=5), elements=st.integers(0, 5))


@given(st.lists(INDEX, min_size=1, max_size=4), st.integers(0, 9))
def test_gradients_are_those_of_indexing(parts: list, seed: int) -> None:  # type: ignore[type-arg]
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.randn(ROWS, 3, dtype=torch.float64, generator=draw).requires_grad_()
    index = [torch.from_numpy(part) for part in parts]
    above = [torch.randn(*one.shape, 3, dtype=torch.float64, generator=draw) for one in index]
    look_up = Lookup(vectors * 2)
    found = [look_up(one) for one in index]
    plain = [(vectors * 2)[one] for one in index]
    assert all(map(torch.equal, found, plain))
    [mine] = torch.autograd.grad(found, [vectors], above)
    [wanted] = torch.autograd.grad(plain, [vectors], above)
    torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)


def test_what_reads_all_of_them_adds_its_gradient() -> None:
    vectors = torch.randn(ROWS, 3, dtype=torch.float64).requires_grad_()
    for reads in ([0, 2, 2], []):
        look_up = Lookup(vectors * 2)
        found = look_up.vectors.square().sum() + look_up(torch.tensor(reads, dtype=torch.int64)).sum()
        plain = (vectors * 2).square().sum() + (vectors * 2)[reads].sum()
        [mine], [wanted] = (torch.autograd.grad(one, [vectors]) for one in (found, plain))
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)


def test_what_is_not_looked_up_gets_nothing() -> None:
    vectors = torch.ones(ROWS, 3, requires_grad=True)
    look_up = Lookup(vectors)
    look_up(torch.tensor([1, 1])).sum().backward()
    assert vectors.grad is not None
    assert vectors.grad.tolist() == [[0.0] * 3, [2.0] * 3, *[[0.0] * 3] * 4]


def test_a_part_whose_gradient_nobody_asks_for_adds_nothing() -> None:
    vectors = torch.ones(ROWS, 3, requires_grad=True)
    look_up = Lookup(vectors)
    look_up(torch.tensor([0])).detach()
    [found] = torch.autograd.grad(look_up(torch.tensor([[2]])).sum(), [vectors])
    assert found.sum(1).tolist() == [0.0, 0.0, 3.0, 0.0, 0.0, 0.0]


def test_nothing_of_a_step_outlives_it() -> None:
    vectors = torch.ones(ROWS, 3, requires_grad=True)
    look_up, known = Lookup(vectors), ref(vectors)
    torch.autograd.grad(look_up(torch.tensor([0])).sum(), [vectors])
    del look_up, vectors
    # Garbage collection does not see what autograd keeps: a cycle through it would last for ever.
    assert known() is None
