"""Training segments: which ranks, threads, device and software trained a state, as recorded in bundles."""

from collections.abc import Sequence
from importlib.metadata import version

import torch

from weir.contracts.format import software_version
from weir.contracts.recipe import Stretch
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.model import Position

__all__ = ["continued", "software"]


def continued(stretches: Sequence[Stretch], position: Position, workers: Workers) -> tuple[Stretch, ...]:
    """Return the segments including the one that starts now, unless it equals the last."""
    now = Stretch(
        sequence=position.sequence,
        step=position.step,
        ranks=workers.world_size,
        threads=torch.get_num_threads(),
        device="cuda" if workers.device.type == "cuda" else "cpu",
        software=software(),
    )
    # A segment that ended before its first step has trained nothing.
    before = tuple(one for one in stretches if one.step < position.step)
    return before if before and before[-1].is_like(now) else (*before, now)


def software() -> dict[str, str]:
    """Return the software versions that affect the bits of a model."""
    return {"weir": software_version(), "torch": torch.__version__, "numpy": version("numpy")}
