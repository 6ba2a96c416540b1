"""Started by torchrun: takes steps in which rank 1 is slow before all meet; tells what each rank hears of it."""

import json
import sys
import time
from pathlib import Path

import torch

from weir.trainer.ranks.coordination import Pace
from weir.trainer.ranks.workers import Workers


def main(out: str, slow: str) -> None:
    with Workers.from_environment("cpu") as workers:
        pace, told = Pace(workers), list[list[float]]()
        for _ in range(2):
            for _ in range(3):
                with pace.step():
                    time.sleep(float(slow) if workers.rank == 1 else 0.0)
                    workers.sum(torch.ones(3))
            told.append(pace.of_ranks())
        facts = {
            "nodes": workers.nodes(),
            "told": told,
            "any": [workers.any(workers.rank == 1), workers.any(workers.rank == 2)],
        }
        # It loads much of torch while there is a group.
        torch.optim.AdamW([torch.ones(1, requires_grad=True)])
        workers.first(lambda: None)
    facts["left"] = [name for name in threads() if "gloo" in name]
    (Path(out) / f"rank{workers.rank}.json").write_text(json.dumps(facts))


def threads() -> list[str]:
    """Return the names of the threads of this process, as the kernel knows them."""
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


if __name__ == "__main__":
    main(*sys.argv[1:])
