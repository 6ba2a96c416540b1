"""The term of exposure against sums written out row by row, and beside every loss."""

import math
from dataclasses import replace

import pytest
import torch

from tests.trainer.losses.step_inputs import random_inputs
from tests.trainer.losses.test_step_loss import CASES
from weir.trainer.config import NegativesConfig, TrainerConfig
from weir.trainer.losses.exposure import exposure_of
from weir.trainer.losses.inputs import LossInputs
from weir.trainer.losses.step_loss import step_loss

KEEP = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [0, 1, 1], [0, 0, 1], [1, 1, 0]], dtype=torch.bool)


def shown(step: LossInputs) -> LossInputs:
    """Add three items that each row was shown with, of which some take no part."""
    draw = torch.Generator().manual_seed(9)
    vectors = torch.randn(len(step.users), 3, 4, generator=draw, dtype=torch.float64).requires_grad_()
    return replace(step, exposed=vectors, exposed_keep=KEEP[: len(step.users)])


def test_is_the_choice_among_what_was_shown() -> None:
    step, config = shown(random_inputs(1)), TrainerConfig(negatives=NegativesConfig(exposed=3, exposed_weight=0.7))
    for row, found in enumerate(exposure_of(step, config).tolist()):
        user = step.users[row]
        chosen = math.exp(float((user @ step.positives[row]).detach()) / step.temperature)
        beside = [
            math.exp(float((user @ one).detach()) / step.temperature) for one in step.given("exposed")[row][KEEP[row]]
        ]
        assert found == pytest.approx(-0.7 * math.log(chosen / (chosen + sum(beside))), rel=1e-9, abs=1e-12)


def test_what_takes_no_part_gets_no_gradient_and_the_positive_is_pulled() -> None:
    step = shown(random_inputs(2))
    exposed = step.given("exposed")
    of_exposed, of_positives = torch.autograd.grad(exposure_of(step, TrainerConfig()).sum(), [exposed, step.positives])
    assert torch.equal(of_exposed.abs().sum(2) > 0, KEEP)
    assert torch.equal(of_positives.abs().sum(1) > 0, KEEP.any(1))


@pytest.mark.parametrize("name", CASES)
def test_comes_on_top_of_every_loss(name: str) -> None:
    config = CASES[name][0]
    plain, with_list = random_inputs(3), shown(random_inputs(3))
    found, alone = step_loss(with_list, config), step_loss(plain, config)
    torch.testing.assert_close(found.losses, alone.losses + exposure_of(with_list, config), rtol=1e-12, atol=1e-12)
    if alone.drawn is not None:
        assert torch.equal(found.drawn, alone.drawn)
