"""The optimiser of everything but the item embeddings.

Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019 (arXiv 1711.05101), algorithm 2, by PyTorch's
own kernel. `torch.optim.AdamW` calls the same, but loads PyTorch's compiler before its first step: a second, and 79 MB
of each rank's own memory, for nothing (docs/lab/store.md).
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
    """Moves `parameters`, all of one device and type; they are numbered in the order in which they came.

    Its state holds the number of steps and both moments of each parameter that has moved, by ``<number>.<name>`` with
    the names of `torch.optim.AdamW`.
    """

    def __init__(self, parameters: Iterable[Tensor], rate: float, decay: float) -> None:
        self.parameters = list(parameters)
        self._rate, self._decay = rate, decay
        self._moments = list[tuple[Tensor, Tensor, Tensor]]()

    def extend(self, parameters: Iterable[Tensor]) -> None:
        """Move these parameters as well from now on."""
        self.parameters.extend(parameters)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Move every parameter by its gradient.

        Raises
        ------
        ValueError
            If there are more gradients or fewer than parameters.
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
        """Return the moments of all parameters that have moved."""
        return {
            f"{number}.{name}": value
            for number, moments in enumerate(self._moments)
            for name, value in zip(_MOMENTS, moments, strict=True)
        }

    def load_state_dict(self, state: dict[str, Tensor], /) -> None:
        """Take over the moments; learning rates and the like stay."""
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
    steps = torch.zeros((), dtype=torch.float32, device=parameter.device)
    return steps, torch.zeros_like(parameter), torch.zeros_like(parameter)
