"""Eight processes that each count a part of a stream, against one that counts all of it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.sketches.count_part import EVENTS, WORKERS, empty, stream
from weir.sketches import FrequencyEstimator, load

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that eight processes, all at once, have filled."""
    folder = tmp_path_factory.mktemp("parts")
    command = [sys.executable, "-m", "tests.sketches.count_part", str(folder)]
    workers = [subprocess.Popen([*command, str(worker)], cwd=ROOT) for worker in range(WORKERS)]
    assert [worker.wait() for worker in workers] == [0] * WORKERS
    return folder


def merged(parts: Path, kind: str, *, weighted: bool) -> FrequencyEstimator:
    first, *others = [load((parts / f"{kind}-{weighted}-{worker}").read_bytes()) for worker in range(WORKERS)]
    for other in others:
        first.merge(other)
    return first


@pytest.mark.parametrize("kind", ["linear", "exact"])
@pytest.mark.parametrize("weighted", [False, True], ids=["events", "weights"])
def test_merged_equals_filled_alone_bit_for_bit(parts: Path, kind: str, weighted: bool) -> None:
    alone = empty(kind)
    alone.update(*stream(weighted=weighted))
    assert merged(parts, kind, weighted=weighted).to_bytes() == alone.to_bytes()


def test_merged_conservative_sketches_keep_the_bound(parts: Path) -> None:
    keys, counts = np.unique(stream(weighted=False)[0], return_counts=True)
    conservative, linear = (merged(parts, kind, weighted=False) for kind in ("conservative", "linear"))
    assert (conservative.estimate(keys) >= counts).all()
    assert (conservative.estimate(keys) <= linear.estimate(keys)).all()
    assert conservative.total == EVENTS
