"""Started by torchrun or alone: trains on a store and tells its process id and its progress in files."""

import logging
import os
import sys
from pathlib import Path

from weir.contracts import Store
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.stream.progress import TrainProgress
from weir.trainer.train import train


def main(url: str, settings: str, notes: str, follow: str) -> None:
    folder, rank = Path(notes), os.environ.get("RANK", "0")
    logging.basicConfig(level=logging.INFO)
    (folder / f"{rank}.pid").write_text(str(os.getpid()))

    def note(progress: TrainProgress) -> None:
        with (folder / "progress").open("a") as file:
            file.write(f"{progress.step}\n")

    summary = train(Store(url), TrainerConfig.model_validate_json(settings), follow=follow == "follow", report=note)
    (folder / f"{rank}.summary").write_text(summary.model_dump_json())


if __name__ == "__main__":
    main(*sys.argv[1:])
