"""By what a state was trained: a bundle's recipe says it."""

from collections.abc import Sequence
from importlib.metadata import version

import torch

from weir.contracts.format import software_version
from weir.contracts.recipe import Stretch
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.model import Position

__all__ = ["continued", "software"]


def continued(stretches: Sequence[Stretch], position: Position, workers: Workers) -> tuple[Stretch, ...]:
    """Return the stretches with the one that starts now, unless it is like the last."""
    now = Stretch(
        sequence=position.sequence,
        step=position.step,
        ranks=workers.world_size,
        threads=torch.get_num_threads(),
        device="cuda" if workers.device.type == "cuda" else "cpu",
        software=software(),
    )
    # One that ended before its first step has left nothing.
    before = tuple(one for one in stretches if one.step < position.step)
    return before if before and before[-1].is_like(now) else (*before, now)


def software() -> dict[str, str]:
    """Return the versions on which the bits of a model depend."""
    return {"weir": software_version(), "torch": torch.__version__, "numpy": version("numpy")}
