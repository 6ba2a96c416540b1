"""AdamW for all parameters except the item embeddings.

Uses PyTorch's fused kernel. `torch.optim.AdamW` calls the same kernel, but loads PyTorch's compiler before its first
step, which costs a second and 79 MB of memory per rank (docs/lab/store.md).

Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019 (arXiv 1711.05101), algorithm 2.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

__all__ = ["AdamW"]

_MOMENTS: Final = ("step", "exp_avg", "exp_avg_sq")
_BETAS: Final = (0.9, 0.999)
_EPSILON: Final = 1e-8


class AdamW:
    """AdamW optimiser of `parameters`, all on one device and of one dtype.

    Parameters are numbered in the order in which they were added. The state has the number of steps and both moments of
    each parameter that has been updated, as ``<number>.<name>`` with the names of `torch.optim.AdamW`.
    """

    def __init__(self, parameters: Iterable[Tensor], rate: float, decay: float) -> None:
        self.parameters = list(parameters)
        self._rate, self._decay = rate, decay
        self._moments = list[tuple[Tensor, Tensor, Tensor]]()

    def extend(self, parameters: Iterable[Tensor]) -> None:
        """Add parameters; they are updated from the next step on."""
        self.parameters.extend(parameters)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update every parameter by its gradient.

        Raises
        ------
        ValueError
            If the number of gradients is not the number of parameters.
        """
        if len(gradients) != len(self.parameters):
            raise ValueError(f"{len(self.parameters)} parameters, but {len(gradients)} gradients")
        if not self.parameters:
            return
        self._moments.extend(map(_fresh, self.parameters[len(self._moments) :]))
        steps, averages, squares = map(list, zip(*self._moments, strict=True))
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            self.parameters,
            list(gradients),
            averages,
            squares,
            [],
            steps,
            lr=self._rate,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            weight_decay=self._decay,
            eps=_EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the steps and moments of all parameters that have been updated, by ``<number>.<name>``."""
        return {
            f"{number}.{name}": value
            for number, moments in enumerate(self._moments)
            for name, value in zip(_MOMENTS, moments, strict=True)
        }

    def load_state_dict(self, state: dict[str, Tensor], /) -> None:
        """Load the result of `state_dict`; learning rate and weight decay stay."""
        moved = self.parameters[: len(state) // len(_MOMENTS)]
        self._moments = [
            (
                state[f"{number}.step"].to(parameter.device, torch.float32),
                state[f"{number}.exp_avg"].to(parameter),
                state[f"{number}.exp_avg_sq"].to(parameter),
            )
            for number, parameter in enumerate(moved)
        ]


def _fresh(parameter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the step count and both moments of a new parameter, all 0."""
    steps = torch.zeros((), dtype=torch.float32, device=parameter.device)
    return steps, torch.zeros_like(parameter), torch.zeros_like(parameter)
