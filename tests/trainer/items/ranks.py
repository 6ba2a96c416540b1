import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def lines_of_ranks(ranks: int, script: str, folder: Path) -> list[int]:
    """Run a script, by its path from here, on so many ranks; return the number that each has written into a folder."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    subprocess.run(
        [sys.executable, *launcher, str(Path(__file__).parent / script), str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=100,
    )
    return [int((folder / f"rank{rank}").read_text()) for rank in range(ranks)]
