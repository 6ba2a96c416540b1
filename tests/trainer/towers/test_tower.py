import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.towers.tower import Dense


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(0, 10**6))
def test_products_and_sums_stay_within_a_history(users: int, length: int, asked: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.randn(users, length, 4, dtype=torch.float64, generator=draw)
    question = torch.randn(users, asked, 4, dtype=torch.float64, generator=draw)
    weights = torch.randn(users, asked, length, dtype=torch.float64, generator=draw)
    history = Dense(vectors)
    assert history.shape == (users, length, 4)
    torch.testing.assert_close(history.compare(question), torch.einsum("bkd,bld->bkl", question, vectors))
    torch.testing.assert_close(history.mix(weights), torch.einsum("bkl,bld->bkd", weights, vectors))
    assert torch.equal(history.newest()[:, 0], vectors[:, -1])
    assert torch.equal(history.mapped(torch.tanh).every(), vectors.tanh())


def test_parts_are_histories_in_their_order() -> None:
    vectors = torch.randn(5, 2, 3)
    parts = Dense(vectors).split(2)
    assert [part.shape[0] for part in parts] == [2, 2, 1]
    assert torch.equal(torch.cat([part.every() for part in parts]), vectors)
