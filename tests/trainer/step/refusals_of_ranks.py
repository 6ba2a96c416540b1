"""Started by torchrun: takes a step whose loss is NaN on rank 1 alone, and one that is sound; tells what each did."""

import json
import math
import sys
from pathlib import Path

from tests.trainer.support import absorbed, batches_of, whole_tensors
from weir.contracts import Store, checksum
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step


def fingerprint(state: TrainerState) -> str:
    found = whole_tensors(state)
    return checksum(b"".join(value.numpy().tobytes() for name, value in found.items() if name != "progress"))


def main(url: str, config: str, out: str) -> None:
    settings = TrainerConfig.model_validate_json(config)
    with Workers.from_environment("cpu") as workers:
        state = absorbed(Store(url), settings, workers=workers)
        sound, broken = batches_of(Store(url), state)[:2]
        weights = broken.weights.clone()
        weights[-1] = math.nan
        told: list[object] = [fingerprint(state)]
        for batch in (broken._replace(weights=weights), sound):
            told += [train_step(state, batch, workers).refused, fingerprint(state)]
        (Path(out) / f"rank{workers.rank}.json").write_text(json.dumps(told))
        # A rank that goes while another is in its last exchange may take that one down.
        workers.first(lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
