"""The recipe for a new loss in CONTRIBUTING.md, followed in a copy of the trainer: one file and one line train."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

LOSS = """
from torch import Tensor

from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.losses.inputs import LossInputs


def hinge(pos: Tensor, neg: Tensor, keep: Tensor) -> Tensor:
    return ((1 + neg - pos[:, None]).clamp(min=0) * keep).mean(1)


def hinge_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    return hinge(step.pos, step.pooled, step.keep)
"""
LINE = '    "hinge": LossNeeds("hinge:hinge_of", "shared"),\n'
TABLE = "LOSSES: Final = {\n"
TRAIN = """
import sys
from weir import trainer
from weir.contracts import Store
from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import WindowWriter, synthetic
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.step import train_step

assert trainer.__file__.startswith(sys.argv[1])
store = Store(sys.argv[1] + "/store")
synthetic(WindowWriter(store), windows=1)
config = TrainerConfig(
    device="cpu", batch_size=32, loss={"kind": "hinge"}, negatives={"uniform": 16},
    tower={"dimension": 8, "history_length": 6},
)
state = absorbed(store, config)
losses = [train_step(state, batch, Workers()).loss for _ in range(8) for batch in batches_of(store, state)]
assert sum(losses[-10:]) < 0.8 * sum(losses[:10]), losses
"""


def test_a_new_loss_is_one_file_and_one_line(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "weir", tmp_path / "weir", symlinks=True)
    for room in ("pipelines", "serving", "sketches"):
        (tmp_path / room).symlink_to(ROOT / room)
    copy = shutil.copytree(ROOT / "trainer", tmp_path / "trainer")
    (copy / "losses" / "hinge.py").write_text(LOSS)
    table = copy / "settings" / "losses.py"
    before = table.read_text()
    assert before.count(TABLE) == 1
    table.write_text(before.replace(TABLE, TABLE + LINE))
    command = [sys.executable, "-c", TRAIN, str(tmp_path)]
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
