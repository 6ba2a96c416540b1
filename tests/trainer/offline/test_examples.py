from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.offline.logs import circles, everything, log_of, small
from weir.trainer.items.table import FIRST_ITEM, PADDING
from weir.trainer.offline.data import InteractionsError, Ints
from weir.trainer.offline.examples import training_batches
from weir.trainer.step.batches import Batch

WHOLE = 1000
"""A batch that holds an epoch."""

parts = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=60).filter(
    lambda rows: any(known for _, known in rows)
)


def divided(rows: list[tuple[int, bool]]) -> tuple[list[int], Ints, list[list[int]]]:
    """Return users, the training rows, and each user's training items: those are the numbers of the rows."""
    users, train = [user for user, _ in rows], np.array([row for row, (_, known) in enumerate(rows) if known])
    return users, train, [[row for row in train.tolist() if users[row] == user] for user in range(5)]


@given(parts, st.integers(1, 7), st.integers(0, 5))
def test_an_epoch_of_histories_covers_every_step_of_training(
    rows: list[tuple[int, bool]], length: int, seed: int
) -> None:
    users, train, own = divided(rows)
    steps = {pair for items in own for pair in pairwise(items)}
    config = small(tower={"history_length": length}, batch_size=WHOLE, seed=seed)
    dealt = training_batches(config, log_of(users), train)
    if not steps:
        with pytest.raises(InteractionsError, match="no user has two training interactions"):
            next(dealt)
        return
    for batch in islice(dealt, 3):
        codes, after = (batch.histories - FIRST_ITEM).tolist(), (batch.positives - FIRST_ITEM).tolist()
        trained = [
            (code, positive)
            for history, positives, real in zip(codes, after, batch.real.tolist(), strict=True)
            for code, positive, is_real in zip(history, positives, real, strict=True)
            if is_real
        ]
        # No step is invented, so neither does any item of validation or test stand anywhere.
        assert set(trained) == steps
        assert set(batch.histories.unique().tolist()) - {PADDING} <= {FIRST_ITEM + row for row in train.tolist()}
        for history, count in zip(codes, batch.user_counts.tolist(), strict=True):
            seen = [code for code in history if code >= 0]
            items = own[users[seen[0]]]
            assert history[-len(seen) :] == seen
            assert seen == items[items.index(seen[0]) :][: len(seen)]
            assert count == len(items)


@given(parts, st.integers(1, 9))
def test_padding_is_never_real_and_batches_are_whole(rows: list[tuple[int, bool]], size: int) -> None:
    users, train, _ = divided([*rows, (0, True), (0, True)])
    dealt = training_batches(small(batch_size=max(size, 2)), log_of(users), train)
    stretches = len(next(training_batches(small(batch_size=WHOLE), log_of(users), train)).positives)
    first, *others = islice(dealt, 6)
    assert len(first.positives) == min(max(size, 2), stretches)
    for batch in (first, *others):
        assert torch.equal(batch.real, batch.positives != PADDING)
        assert torch.equal(batch.real, batch.histories != PADDING)
        assert batch.real.any(1).all()
        assert (batch.weights == 1).all()


@given(parts, st.integers(0, 5))
def test_an_epoch_of_pairs_deals_every_interaction_once(rows: list[tuple[int, bool]], seed: int) -> None:
    users, train, own = divided(rows)
    config = small("matrix_factorisation", batch_size=WHOLE, seed=seed)
    first_user = FIRST_ITEM + len(users)
    for batch in islice(training_batches(config, log_of(users), train), 2):
        pairs = list(zip((batch.histories[:, 0] - first_user).tolist(), batch.positives.tolist(), strict=True))
        assert Counter(pairs) == Counter((users[row], FIRST_ITEM + row) for row in train.tolist())
        assert batch.real.all()
        assert batch.user_counts.tolist() == [len(own[user]) for user, _ in pairs]
        for (user, positive), known in zip(pairs, batch.known.tolist(), strict=True):
            assert set(known) <= {PADDING} | {FIRST_ITEM + row for row in own[user]} - {positive}


def test_all_other_items_of_a_user_are_known_in_time() -> None:
    log = log_of([0] * 6 + [1] * 4)
    known: dict[int, set[int]] = {}
    for batch in islice(training_batches(small("lightgcn"), log, everything(log)), 10):
        for positive, others in zip(batch.positives.tolist(), batch.known.tolist(), strict=True):
            known.setdefault(positive, set()).update(others)
    own = [set(range(FIRST_ITEM, FIRST_ITEM + 6)), set(range(FIRST_ITEM + 6, FIRST_ITEM + 10))]
    assert {positive: others - {PADDING} for positive, others in known.items()} == {
        row: items - {row} for items in own for row in items
    }


def test_an_item_had_twice_is_not_known_beside_itself() -> None:
    log = log_of([0] * 4, [1, 1, 1, 1])
    batch = next(training_batches(small("matrix_factorisation"), log, everything(log)))
    assert not batch.known.any()


def dealt(kind: str, seed: int, count: int) -> list[Batch]:
    log = circles()
    return list(islice(training_batches(small(kind, seed=seed), log, everything(log)), count))


@pytest.mark.parametrize("kind", ["sasrec", "matrix_factorisation"])
def test_a_seed_decides_all_batches(kind: str) -> None:
    first, again, other = (dealt(kind, seed, 40) for seed in (1, 1, 2))
    for one, two in zip(first, again, strict=True):
        assert all(torch.equal(left, right) for left, right in zip(one, two, strict=True))
    assert any(not torch.equal(one.positives, two.positives) for one, two in zip(first, other, strict=True))


def test_every_epoch_cuts_elsewhere() -> None:
    log = log_of([0] * 60)
    epochs = islice(training_batches(small(batch_size=WHOLE), log, everything(log)), 30)
    ends = [tuple(sorted(batch.positives[:, -1].tolist())) for batch in epochs]
    # With five places a stretch may begin at, there are five ways to cut; the newest item ends one in all of them.
    assert len(set(ends)) == 5
    assert all(FIRST_ITEM + 59 in cut for cut in ends)
