import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.step.seeds import Purpose, derive, generator, seed_dropout

seeds = st.integers(0, 2**63 - 1)


@given(seeds, st.sampled_from(list(Purpose)), st.lists(st.integers(-1, 2**62), max_size=3))
def test_a_draw_depends_on_its_place_alone(seed: int, purpose: Purpose, position: list[int]) -> None:
    first = torch.rand(3, generator=generator(seed, purpose, *position))
    torch.rand(5)
    assert torch.equal(first, torch.rand(3, generator=generator(seed, purpose, *position)))
    assert 0 <= derive(seed, purpose, *position) < 2**63


@given(seeds, st.integers(0, 1000))
def test_purposes_and_positions_are_independent(seed: int, step: int) -> None:
    found = {derive(seed, purpose, place) for purpose in Purpose for place in (step, step + 1)}
    assert len(found) == 2 * len(Purpose)


def test_a_generator_is_on_the_device_that_is_asked_for() -> None:
    assert generator(0, Purpose.RESAMPLING).device == torch.device("cpu")
    assert torch.equal(
        torch.rand(3, generator=generator(7, Purpose.ROWS, device=torch.device("cpu"))),
        torch.rand(3, generator=generator(7, Purpose.ROWS)),
    )


def test_dropout_depends_on_step_and_rank_alone() -> None:
    def dropped(step: int, rank: int) -> list[float]:
        seed_dropout(3, step, rank, torch.device("cpu"))
        return torch.nn.functional.dropout(torch.ones(64)).tolist()

    with torch.random.fork_rng(devices=[]):
        first = dropped(5, 1)
        assert dropped(5, 1) == first
        assert first not in (dropped(6, 1), dropped(5, 0))
        torch.manual_seed(derive(3, Purpose.DROPOUT, 5, 1))
        assert torch.nn.functional.dropout(torch.ones(64)).tolist() == first


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_generator_of_a_gpu_draws_for_it() -> None:
    draw = generator(0, Purpose.RESAMPLING, device=torch.device("cuda", 0))
    assert torch.multinomial(torch.ones(5, device="cuda"), 2, generator=draw).device.type == "cuda"
