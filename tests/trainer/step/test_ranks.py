"""However many ranks share the batches, training comes to the same parameters; three ranks share none evenly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from contracts import Store
from tests.trainer.step.steps_of_ranks import trained
from tests.trainer.step.test_training import KINDS, configured
from tests.trainer.windows import WindowWriter, synthetic
from trainer.config import TrainerConfig
from trainer.loss_config import LOSSES
from trainer.ranks.workers import Workers
from trainer.tower_config import kinds

ROOT = Path(__file__).parents[3]

UNSEEN = 1e-10
"""How far the bias of the keys may be off: it adds the same to all logits of a query, so attention does not see it. Its
gradient is rounding alone, some 1e-18, and AdamW divides by hardly more than its epsilon of 1e-8."""


def settings_of(config: TrainerConfig) -> dict[str, TrainerConfig]:
    """Return settings for each tower, and for each loss that several ranks can share and that draws alike on all."""
    config = configured(config, {"tower": {"dropout": 0.0}})
    found = {f"tower {kind}": configured(config, {"tower": {"kind": kind}}) for kind in kinds(knows_users=False)}
    for name, sections in KINDS.items():
        kind = sections.get("loss", {}).get("kind", "sampled_softmax")
        # The first is a loss of whole batches, the second draws by rank.
        if not LOSSES[kind].user_counts and kind != "resampled_softmax":
            found[f"loss {name}"] = configured(config, sections)
    return found


def on_ranks(ranks: int, store: Store, settings: dict[str, TrainerConfig], dtype: str, out: Path) -> None:
    plain = json.dumps({name: config.model_dump(mode="json") for name, config in settings.items()})
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    script = str(Path(__file__).parent / "steps_of_ranks.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launcher, script, store.url, plain, dtype, str(out)],
        env=environment,
        timeout=400,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_training_comes_to_the_same_parameters_with_any_number_of_ranks(
    store: Store, writer: WindowWriter, config: TrainerConfig, tmp_path: Path, ranks: int
) -> None:
    synthetic(writer, windows=1, events=75, exposed=3)
    settings = settings_of(config)
    on_ranks(ranks, store, settings, "float64", tmp_path)
    for setting, chosen in settings.items():
        alone = trained(store, chosen, Workers(), torch.float64)
        first, *others = (torch.load(tmp_path / f"{setting}.{rank}.pt") for rank in range(ranks))
        for name, value in alone.items():
            assert value.isfinite().all()
            off = (first[name] - value).abs()
            if name.endswith("key_value.bias"):
                keys, off = off.chunk(2)
                assert keys.max() <= UNSEEN, (setting, name, keys.max())
            assert off.max() <= 1e-12, (setting, name, off.max())
            assert all(torch.equal(first[name], other[name]) for other in others), (setting, name)


def test_float32_is_the_same_bit_for_bit_each_time(
    store: Store, writer: WindowWriter, config: TrainerConfig, tmp_path: Path
) -> None:
    synthetic(writer, windows=1, events=75)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        on_ranks(3, store, {"all": config}, "float32", tmp_path / name)
    one, two = (torch.load(tmp_path / name / "all.2.pt") for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())
