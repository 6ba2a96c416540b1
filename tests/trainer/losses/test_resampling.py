""""""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weir.trainer import losses

Draw = Callable[..., Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class TestWeights:
    @settings(max_examples=30, deadline=None)
    @given(rows=st.integers(1, 4), columns=st.integers(1, 7), seed=st.integers(0, 10**6))
    def test_equal_brute_force(self, draw: Draw, *, rows: int, columns: int, seed: int) -> None:
        scores = draw(seed, rows, columns)
        pop = np.random.default_rng(seed).uniform(1, 50, columns)
        value = losses.resampling_log_weights(scores, torch.from_numpy(pop).log()).exp().numpy()
        for row in range(rows):
            raw = [np.exp(scores[row, i].item()) / pop[i] for i in range(columns)]
            np.testing.assert_allclose(value[row], np.array(raw) / sum(raw), rtol=1e-12)

    def test_a_constant_changes_nothing(self, draw: Draw) -> None:
        scores, log_pop = draw(0, 3, 5), draw(1, 5)
        value = losses.resampling_log_weights(scores, log_pop)
        torch.testing.assert_close(losses.resampling_log_weights(scores, log_pop + 7.0), value)

    def test_general_duties(
        self, draw: Draw, assert_dtypes: Callable[..., None], assert_survives_extremes: Callable[..., None]
    ) -> None:
        log_pop = draw(1, 5)
        assert_dtypes(lambda scores: losses.resampling_log_weights(scores, log_pop), draw(0, 3, 5))
        assert_survives_extremes(lambda scores: losses.resampling_log_weights(scores, log_pop), (3, 5))

    @pytest.mark.parametrize(
        ("scores", "log_pop", "message"),
        [
            (torch.zeros(3), torch.zeros(3), r"scores must have shape \(B, C\), got \(3,\)"),
            (torch.zeros(2, 3), torch.zeros(2), r"log_pop must have shape \(C=3\), got \(2,\)"),
            (torch.zeros(2, 0), torch.zeros(0), "scores must have at least one element in dimension 1"),
            (torch.zeros(2, 1), torch.tensor([torch.nan]), "log_pop must hold log-probabilities, got 1 NaN"),
            (torch.zeros(2, 1), torch.tensor([-torch.inf]), "log_pop must be finite"),
        ],
    )
    def test_refuses(self, scores: Tensor, log_pop: Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            losses.resampling_log_weights(scores, log_pop)
        with pytest.raises(ValueError, match=message):
            losses.resample(scores, log_pop, 2, seeded())


class TestResample:
    def test_frequencies_follow_the_weights(self, draw: Draw) -> None:
        scores, log_pop = draw(0, 3, 4, scale=1.0), draw(1, 4, scale=1.0)
        draws = 40_000
        index = losses.resample(scores, log_pop, draws, seeded())
        assert index.shape == (3, draws)
        assert index.dtype == torch.int64
        share = torch.stack([(index == item).double().mean(1) for item in range(4)], 1)
        expected = losses.resampling_log_weights(scores, log_pop).exp()
        # Five standard deviations of a binomial share.
        assert ((share - expected).abs() < 5 * (expected * (1 - expected) / draws).sqrt()).all()

    def test_popular_batch_plus_weights_give_the_softmax(self) -> None:
        """Theorem 3.1: drawing from a batch that follows the popularity ends up at the softmax of the catalogue."""
        pop = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
        logits = torch.tensor([0.0, 1.0, 0.5, 2.0], dtype=torch.float64)
        batch = torch.multinomial(pop, 50_000, replacement=True, generator=seeded(1))
        index = losses.resample(logits[batch][None], pop.log()[batch], 50_000, seeded(2))
        share = torch.bincount(batch[index[0]], minlength=4).double() / 50_000
        torch.testing.assert_close(share, logits.softmax(0), rtol=0, atol=0.02)

    def test_is_repeatable_and_detached(self, draw: Draw) -> None:
        scores, log_pop = draw(0, 3, 4).requires_grad_(), draw(1, 4)
        first = losses.resample(scores, log_pop, 9, seeded(5))
        assert torch.equal(first, losses.resample(scores, log_pop, 9, seeded(5)))
        assert losses.resample(scores.detach().bfloat16() * 1e4, log_pop, 9, seeded(5)).shape == (3, 9)

    def test_refuses_no_draws(self) -> None:
        with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
            losses.resample(torch.zeros(1, 2), torch.zeros(2), 0, seeded())


class TestResampledSoftmax:
    @settings(max_examples=30, deadline=None)
    @given(
        rows=st.integers(1, 4),
        columns=st.integers(1, 5),
        draws=st.integers(1, 6),
        seed=st.integers(0, 10**6),
        include_positive=st.booleans(),
    )
    def test_equals_the_formula(
        self, draw: Draw, *, rows: int, columns: int, draws: int, seed: int, include_positive: bool
    ) -> None:
        pos, scores = draw(seed, rows), draw(seed + 1, rows, columns)
        index = torch.from_numpy(np.random.default_rng(seed).integers(0, columns, (rows, draws)))
        value = losses.resampled_softmax(pos, scores, index, include_positive=include_positive)
        for row in range(rows):
            total = sum(np.exp(scores[row, j].item()) for j in index[row].tolist())
            total += np.exp(pos[row].item()) * include_positive
            assert value[row] == pytest.approx(-np.log(np.exp(pos[row].item()) / total), rel=1e-11, abs=1e-12)

    def test_drawing_each_once_is_info_nce(self, draw: Draw) -> None:
        pos, scores = draw(0, 3), draw(1, 3, 5)
        index = torch.arange(5).expand(3, 5)
        torch.testing.assert_close(
            losses.resampled_softmax(pos, scores, index), losses.info_nce(pos, scores), rtol=1e-13, atol=0
        )

    @pytest.mark.parametrize("include_positive", [True, False])
    def test_general_duties(
        self,
        draw: Draw,
        assert_dtypes: Callable[..., None],
        assert_survives_extremes: Callable[..., None],
        *,
        include_positive: bool,
    ) -> None:
        index = torch.tensor([[0, 0, 3], [1, 2, 2], [4, 4, 4]])

        def loss(pos: Tensor, scores: Tensor) -> Tensor:
            return losses.resampled_softmax(pos, scores, index, include_positive)

        assert_dtypes(loss, draw(0, 3), draw(1, 3, 5))
        assert_survives_extremes(loss, (3,), (3, 5))
        assert torch.autograd.gradcheck(loss, (draw(0, 3).requires_grad_(), draw(1, 3, 5).requires_grad_()))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"index": torch.tensor([[0], [3]])}, r"index must lie in \[0, 3\), got values from 0 to 3"),
            ({"index": torch.zeros(2, 1)}, "index must hold integer indices, got torch.float32"),
            ({"index": torch.zeros(2, 0).long()}, "index must have at least one element in dimension 1"),
            ({"index": torch.zeros(3, 1).long()}, r"index must have shape \(B=2, S\), got \(3, 1\)"),
            ({"scores": torch.zeros(3, 3)}, r"scores must have shape \(B=2, C\), got \(3, 3\)"),
        ],
    )
    def test_refuses(self, changes: dict[str, Tensor], message: str) -> None:
        arguments = {"pos": torch.zeros(2), "scores": torch.zeros(2, 3), "index": torch.zeros(2, 1).long()}
        with pytest.raises(ValueError, match=message):
            losses.resampled_softmax(**(arguments | changes))


class TestItemCache:
    def test_starts_uniform(self) -> None:
        cache = losses.ItemCache(20_000, 5, seeded())
        share = torch.bincount(cache.items, minlength=5) / 20_000
        torch.testing.assert_close(share, torch.full((5,), 0.2), rtol=0, atol=0.02)
        assert torch.equal(cache.counts, torch.zeros(5, dtype=torch.int64))

    def test_counts_what_was_drawn_and_follows_it(self) -> None:
        cache = losses.ItemCache(20_000, 5, seeded())
        before = cache.items.clone()
        cache.update(torch.tensor([[3, 3], [1, 3]]))
        assert cache.counts.tolist() == [0, 1, 0, 3, 0]
        assert torch.equal(cache.items, before)
        cache.redraw()
        share = torch.bincount(cache.items, minlength=5) / 20_000
        torch.testing.assert_close(share, torch.tensor([0, 0.25, 0, 0.75, 0]), rtol=0, atol=0.02)

    def test_new_items_enter_with_count_zero(self) -> None:
        cache = losses.ItemCache(64, 3, seeded())
        cache.update(torch.tensor([0, 2]))
        cache.add(2)
        assert cache.counts.tolist() == [1, 0, 1, 0, 0]
        cache.redraw()
        assert set(cache.items.tolist()) == {0, 2}
        cache.update(torch.tensor([4]))
        cache.redraw()
        assert set(cache.items.tolist()) == {0, 2, 4}

    def test_removed_items_leave_at_once_and_for_good(self) -> None:
        cache = losses.ItemCache(200, 4, seeded())
        cache.update(torch.tensor([0, 1, 1]))
        cache.redraw()
        kept = cache.items.clone()
        cache.remove(torch.tensor([1]))
        assert cache.counts.tolist() == [1, 0, 0, 0]
        assert torch.equal(cache.items[kept == 0], kept[kept == 0])
        assert (cache.items == 0).all()
        cache.remove(torch.tensor([0]))
        assert set(cache.items.tolist()) == {2, 3}
        cache.update(torch.tensor([1, 0]))
        cache.redraw()
        assert set(cache.items.tolist()) == {2, 3}

    def test_starts_with_the_ids_in_use(self) -> None:
        cache = losses.ItemCache(200, 9, seeded(), torch.tensor([[2, 7], [2, 5]]))
        assert set(cache.items.tolist()) == {2, 5, 7}
        cache.update(torch.tensor([1, 5]))
        assert cache.counts.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0]

    def test_restored_ids_stand_for_new_items(self) -> None:
        cache = losses.ItemCache(400, 4, seeded())
        cache.update(torch.tensor([0, 1, 1, 2]))
        cache.redraw()
        before = cache.items.clone()
        cache.remove(torch.tensor([2]))
        cache.add(2, in_use=False)
        cache.restore(torch.tensor([2, 1, 5]))
        assert cache.counts.tolist() == [1, 0, 0, 0, 0, 0]
        assert (cache.items == 0).all(), "nobody has drawn the new items yet"
        assert (before[:3] != 3).all()
        cache.update(torch.tensor([1, 2, 4, 5]))
        assert cache.counts.tolist() == [1, 1, 1, 0, 0, 1]
        cache.remove(torch.tensor([0, 1, 2, 5]))
        assert set(cache.items.tolist()) == {3}

    def test_a_table_may_change_completely(self) -> None:
        cache = losses.ItemCache(50, 4, seeded(), torch.tensor([0, 1]))
        cache.update(torch.tensor([0, 1, 1]))
        cache.restore(torch.tensor([1, 3]))
        cache.remove(torch.tensor([0]))
        assert set(cache.items.tolist()) == {1, 3}
        assert cache.counts.sum() == 0

    @settings(max_examples=25, deadline=None)
    @given(
        steps=st.lists(st.sampled_from(["update", "redraw", "add", "remove", "restore"]), min_size=1, max_size=15),
        seed=st.integers(0, 99),
    )
    def test_the_cache_follows_its_density(self, steps: list[str], seed: int) -> None:
        """Items enter and leave, yet after a redraw the slots are a sample of the stated density."""
        numbers = np.random.default_rng(seed)
        cache = losses.ItemCache(20_000, 20, seeded(seed))
        cache.update(torch.tensor([0, 1, 1, 4, 4, 4]))
        cache.redraw()
        for step in steps:
            ids = torch.from_numpy(numbers.integers(0, len(cache.counts), 2))
            if step == "redraw":
                cache.redraw()
            elif step == "update":
                cache.update(ids)
                cache.redraw()
            else:
                getattr(cache, step)(1 if step == "add" else ids[:1])
            if not cache.counts.any():
                cache.redraw()
            density = cache.log_density().exp()
            assert float(density.sum()) == pytest.approx(1)
            share = torch.bincount(cache.items, minlength=len(density)) / 20_000
            # Seven standard deviations of a binomial share, as many are compared; an id of density 0 is never held.
            assert ((share - density).abs() <= 7 * (density * (1 - density) / 20_000).sqrt()).all()

    @settings(max_examples=50, deadline=None)
    @given(
        steps=st.lists(st.sampled_from(["update", "add", "remove", "restore"]), max_size=12),
        seed=st.integers(0, 99),
    )
    def test_draws_are_those_of_a_look_at_all_ids(self, steps: list[str], seed: int) -> None:
        numbers, generator = np.random.default_rng(seed), seeded(seed)
        cache = losses.ItemCache(40, 150, generator)
        for step in steps:
            ids = torch.from_numpy(numbers.integers(0, len(cache.counts), 30))
            getattr(cache, step)(7 if step == "add" else ids)
            before = generator.get_state()
            cache.redraw()
            weights = cache.counts if cache.counts.any() else cache.state_dict()["present"].long()
            generator.set_state(before)
            tickets = torch.randint(int(weights.sum()), (40,), generator=generator)
            assert torch.equal(cache.items, torch.searchsorted(weights.cumsum(0), tickets, right=True))

    @settings(max_examples=25, deadline=None)
    @given(
        steps=st.lists(st.sampled_from(["update", "redraw", "add", "remove", "restore"]), max_size=12),
        seed=st.integers(0, 99),
    )
    def test_resumes_exactly(self, steps: list[str], seed: int) -> None:
        def run(cache: losses.ItemCache, numbers: np.random.Generator, some: list[str]) -> None:
            for step in some:
                ids = torch.from_numpy(numbers.integers(0, len(cache.counts), 3))
                if step == "redraw":
                    cache.redraw()
                else:
                    getattr(cache, step)(2 if step == "add" else ids[:1] if step == "remove" else ids)

        half = len(steps) // 2
        whole, numbers = losses.ItemCache(6, 30, seeded(seed)), np.random.default_rng(seed)
        run(whole, numbers, steps[:half])
        state = whole.state_dict()
        resumed = losses.ItemCache(6, 3, seeded(seed + 1000))
        resumed.load_state_dict(state)
        again = np.random.default_rng()
        again.bit_generator.state = numbers.bit_generator.state
        run(whole, numbers, steps[half:])
        run(resumed, again, steps[half:])
        whole.redraw()
        resumed.redraw()
        for key, value in whole.state_dict().items():
            assert torch.equal(value, resumed.state_dict()[key]), key

    def test_a_state_is_a_copy(self) -> None:
        cache = losses.ItemCache(3, 3, seeded())
        state = cache.state_dict()
        other = losses.ItemCache(3, 3, seeded(1))
        other.load_state_dict(state)
        cache.update(torch.tensor([0]))
        assert state["counts"].sum() == 0
        other.update(torch.tensor([1]))
        assert state["counts"].sum() == 0
        assert cache.counts.tolist() == [1, 0, 0]

    def test_xir_is_the_mixture_of_two_parts(self, draw: Draw) -> None:
        """The whole of algorithm 2 for one batch, and equation 4 by hand."""
        towers = draw(0, 4, 8), draw(1, 10, 8)
        batch, cache = torch.tensor([7, 1, 1, 4]), losses.ItemCache(5, 10, seeded())
        log_pop = draw(2, 10)
        pos = (towers[0] * towers[1][batch]).sum(1)
        parts = []
        for candidates in (cache.items, batch):
            scores = towers[0] @ towers[1][candidates].T
            index = losses.resample(scores, log_pop[candidates], 2, seeded(3))
            parts.append(losses.resampled_softmax(pos, scores, index))
            cache.update(candidates[index])
            chosen = scores.gather(1, index).exp().sum(1) + pos.exp()
            torch.testing.assert_close(parts[-1], -(pos.exp() / chosen).log(), rtol=1e-10, atol=1e-12)
        assert cache.counts.sum() == 16
        cache.redraw()
        assert (cache.counts[cache.items] > 0).all()

    def test_refuses(self) -> None:
        cache = losses.ItemCache(3, 4, seeded())
        with pytest.raises(ValueError, match="size must be at least 1, got 0"):
            losses.ItemCache(0, 4, seeded())
        with pytest.raises(ValueError, match="num_items must be at least 1, got 0"):
            losses.ItemCache(1, 0, seeded())
        with pytest.raises(ValueError, match=r"ids must lie in \[0, 4\), got values from 0 to 4"):
            cache.update(torch.tensor([0, 4]))
        with pytest.raises(ValueError, match=r"ids must lie in \[0, 4\), got values from -1 to -1"):
            cache.remove(torch.tensor([-1]))
        with pytest.raises(ValueError, match="ids must leave at least one item, got all 4 of them"):
            cache.remove(torch.arange(4))
        with pytest.raises(ValueError, match=r"ids must lie in \[0, 4\), got values from 4 to 4"):
            cache.restore(torch.tensor([4]))
        with pytest.raises(ValueError, match="ids must name at least one item, got none"):
            losses.ItemCache(1, 2, seeded(), torch.tensor([], dtype=torch.int64))
        with pytest.raises(ValueError, match="n must be at least 0, got -1"):
            cache.add(-1)
        assert cache.counts.tolist() == [0, 0, 0, 0]

    def test_refuses_a_foreign_state(self) -> None:
        cache = losses.ItemCache(3, 4, seeded())
        state = cache.state_dict()
        with pytest.raises(ValueError, match=r"state must have the keys .*, got \['items'\]"):
            cache.load_state_dict({"items": state["items"]})
        with pytest.raises(ValueError, match=r"state\['items'\] must have shape \(size=3\), got \(2,\)"):
            cache.load_state_dict(state | {"items": state["items"][:2]})
        with pytest.raises(ValueError, match=r"state\['items'\] must lie in \[0, 4\)"):
            cache.load_state_dict(state | {"items": state["items"] + 4})
