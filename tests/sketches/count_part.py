"""A worker that counts every eighth event with each estimator and leaves the bytes in a folder.

python -m tests.sketches.count_part FOLDER WORKER
"""

import sys
from pathlib import Path

import numpy as np

from tests.sketches.support import F64, I64, zipf
from weir.sketches import CountMinSketch, ExactCounter, FrequencyEstimator

WORKERS = 8
EVENTS, ITEMS = 80_000, 5_000
KINDS = ("linear", "conservative", "exact")


def empty(kind: str) -> FrequencyEstimator:
    return ExactCounter() if kind == "exact" else CountMinSketch(1 << 11, conservative=kind == "conservative")


def stream(*, weighted: bool) -> tuple[I64, F64 | None]:
    weights = np.random.default_rng(1).integers(1, 4096, EVENTS) / 1024.0 if weighted else None
    return zipf(ITEMS, EVENTS, 1.05), weights


def main(folder: Path, worker: int) -> None:
    for weighted in (False, True):
        keys, weights = stream(weighted=weighted)
        for kind in KINDS:
            estimator = empty(kind)
            for part in np.array_split(np.arange(worker, EVENTS, WORKERS), 5):
                estimator.update(keys[part], None if weights is None else weights[part])
            (folder / f"{kind}-{weighted}-{worker}").write_bytes(estimator.to_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
