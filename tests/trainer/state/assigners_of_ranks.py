"""Started by torchrun: ranks assign chosen vectors together, and find what one finds alone, bit for bit."""

import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from tests.trainer.state.test_assigner import centroids_and_vectors, quantizer_of
from weir.trainer.items.rows import TableRows
from weir.trainer.ranks.workers import Workers
from weir.trainer.state import assigner
from weir.trainer.state.assigner import Assigned, Assigner, assign


def compare(folder: Path, chosen: np.ndarray, workers: Workers) -> int:
    """Assign chosen vectors in both ways; return how many there are."""
    centroids, vectors = centroids_and_vectors()
    path, found = folder / "vectors.npy", list[Assigned]()
    if workers.is_first:
        np.save(path, vectors)
    together = Assigner(workers, torch.from_numpy(vectors).__getitem__)
    workers.first(lambda: found.append(together.assign(path, chosen, centroids)), together.answer)
    if len(chosen):
        rows = TableRows(chosen)
        workers.first(lambda: found.append(together.assign_rows(rows, centroids)), together.answer)
    for shared in found:
        alone = assign(quantizer_of(centroids), vectors, chosen)
        assert [one.dtype for one in shared] == [one.dtype for one in alone]
        assert shared.lists.tolist() == alone.lists.tolist()
        assert shared.cosines.tobytes() == alone.cosines.tobytes()
    return len(chosen)


def main(folder: str) -> None:
    draw = np.random.default_rng(1)
    with Workers.from_environment("cpu") as workers, patch.object(assigner, "_BLOCK", 400):
        counts = [
            compare(Path(folder), np.sort(draw.permutation(3000)[:size]), workers) for size in (0, 1, 401, 900, 3000)
        ]
        Path(folder, f"rank{workers.rank}").write_text(str(sum(counts)))


if __name__ == "__main__":
    main(sys.argv[1])
