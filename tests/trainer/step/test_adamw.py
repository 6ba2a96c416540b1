import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weir.trainer.step.adamw import AdamW

RATES = st.floats(1e-5, 1.0)
"""Learning rates, and weight decays."""


def drawn(seed: int, dtype: torch.dtype) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw, dtype=dtype) for shape in ((3, 5), (7,), (2, 2, 2))]


@settings(deadline=None)
@given(rate=RATES, decay=RATES, seed=st.integers(0, 99), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_each_step_is_that_of_torch(rate: float, decay: float, seed: int, dtype: torch.dtype) -> None:
    """Bit for bit, with parameters that come later."""
    own, its = drawn(seed, dtype), [one.requires_grad_() for one in drawn(seed, dtype)]
    optimizer, oracle = AdamW(own[:2], rate, decay), torch.optim.AdamW(its[:2], lr=rate, weight_decay=decay, fused=True)
    for step in range(5):
        if step == 2:
            optimizer.extend(own[2:])
            oracle.add_param_group({"params": its[2:]})
        gradients = drawn(seed + step + 1, dtype)[: len(optimizer.parameters)]
        optimizer.step(gradients)
        for parameter, gradient in zip(its, gradients, strict=False):
            parameter.grad = gradient
        oracle.step()
        assert all(map(torch.equal, own, its))
    slots = oracle.state_dict()["state"]
    state = {f"{number}.{name}": value for number, slot in slots.items() for name, value in slot.items()}
    mine = optimizer.state_dict()
    assert mine.keys() == state.keys()
    assert all(torch.equal(mine[name], state[name]) for name in state)


def test_a_saved_one_goes_on_as_it_would_have() -> None:
    kept, first = drawn(0, torch.float32), drawn(0, torch.float32)
    through, saved = AdamW(kept, 0.1, 0.1), AdamW(first, 0.1, 0.1)
    through.step(drawn(1, torch.float32))
    saved.step(drawn(1, torch.float32))
    loaded = AdamW(first, 0.1, 0.1)
    loaded.load_state_dict(saved.state_dict())
    for optimizer in (through, loaded):
        optimizer.step(drawn(2, torch.float32))
    assert all(map(torch.equal, kept, first))
    assert all(map(torch.equal, through.state_dict().values(), loaded.state_dict().values()))


def test_what_has_not_moved_has_no_state() -> None:
    early, late = drawn(0, torch.float32)[:2]
    optimizer = AdamW([early], 0.1, 0.1)
    assert optimizer.state_dict() == {}
    optimizer.step([torch.ones_like(early)])
    optimizer.extend([late])
    state = optimizer.state_dict()
    assert list(state) == ["0.step", "0.exp_avg", "0.exp_avg_sq"]
    loaded = AdamW([early, late], 0.1, 0.1)
    loaded.load_state_dict(state)
    assert list(loaded.state_dict()) == list(state)


def test_there_may_be_nothing_to_move() -> None:
    optimizer = AdamW([], 0.1, 0.1)
    optimizer.step([])
    assert optimizer.state_dict() == {}


@pytest.mark.parametrize("wrong", [[], [torch.ones(2), torch.ones(2)]])
def test_each_parameter_has_one_gradient(wrong: list[Tensor]) -> None:
    with pytest.raises(ValueError, match=f"1 parameters, but {len(wrong)} gradients"):
        AdamW([torch.ones(2)], 0.1, 0.1).step(wrong)


def test_no_compiler_is_loaded_for_it() -> None:
    """It is what `torch.optim` is not used for."""
    step = (
        "import sys, torch; from weir.trainer.step.adamw import AdamW; "
        "AdamW([torch.ones(1)], 1, 1).step([torch.ones(1)])"
    )
    subprocess.run([sys.executable, "-c", f"{step}; assert 'torch._dynamo' not in sys.modules"], check=True)
