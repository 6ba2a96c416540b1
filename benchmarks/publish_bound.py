"""What the bound of publishing costs in recall, and how much it leaves unpublished, along a real stream.

    OMP_NUM_THREADS=1 python -m benchmarks.publish_bound                          # the demo's generated log
    OMP_NUM_THREADS=1 python -m benchmarks.publish_bound --log interactions.parquet

One training goes through the windows of a log, with the settings of `weir up --demo`. After each window it exports once
for every bound, each into a store of its own, which has seen the same training. The columns are means over the windows:

- moved: share of the items that are new or off by more than the bound; deltas: share of the exports that were deltas;
- recall@20 of the bundle on the next window before that is trained on, and its difference from the bundle with bound 0,
  with the standard error of the difference over windows.
"""

import tempfile
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from benchmarks.harness import command_line, head, row
from weir.config import Settings
from weir.contracts import BundleLog, Store, WindowLog, WindowManifest
from weir.demo.generator import generate
from weir.demo.source import open_log
from weir.pipelines.ingest import ingest
from weir.trainer.export import export_bundle
from weir.trainer.export.cases import MOST, Cases, RecentCases
from weir.trainer.export.keeper import Keeper
from weir.trainer.export.servable import Servable
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.shared_window import SharedWindow
from weir.trainer.stream.learner import Learner
from weir.trainer.stream.metrics import TrainerMetrics
from weir.trainer.stream.progress import ProgressObserver
from weir.trainer.stream.windows import StopSignal
from weir.up.prepare import demo_settings

app = command_line(__doc__)
K: Final = 20
BOUNDS: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass
class Published:
    """The bundles of one bound, and what they showed."""

    bound: float
    store: Store
    keeper: Keeper = field(default_factory=Keeper)
    servable: Servable | None = None
    moved: list[float] = field(default_factory=list)
    deltas: list[bool] = field(default_factory=list)
    recalls: list[float] = field(default_factory=list)

    def test(self, cases: Cases) -> None:
        """Test the newest bundle on events that nothing was trained on."""
        if self.servable is not None and len(cases):
            self.recalls.append(float(self.servable.hits(cases, K).mean()))

    def export(self, state: TrainerState, recent: RecentCases) -> None:
        """Export as a stream with this bound does."""
        mine = copy(state)
        mine.config = state.config.model_copy(update={"publish_bound": self.bound})
        manifest = export_bundle(self.store, mine, recent, keeper=self.keeper)
        self.servable = self.keeper.open(BundleLog(self.store), manifest)
        if manifest.moved is not None:
            self.moved.append(manifest.moved)
        self.deltas.append(manifest.depth > 0)


def trained(store: Store, settings: Settings, published: list[Published]) -> Iterator[int]:
    """Train window by window, and export after each; yields the number of the window."""
    config, metrics, log = settings.trainer, TrainerMetrics(), WindowLog(store)
    state, recent = TrainerState.fresh(config), RecentCases(store, config)

    def review(manifest: WindowManifest, found: SharedWindow) -> None:
        cases = recent.note(manifest, found.sampled(config.seed, manifest.sequence, MOST))
        for one in published:
            one.test(cases)

    observer = ProgressObserver(store, metrics, is_first=True, report=None)
    learner = Learner(state, log, Workers(), StopSignal(), observer, CheckpointLog(store), review)
    for manifest in log.follow():
        learner.process_window(manifest)
        for one in published:
            one.export(state, recent)
        yield manifest.sequence


@app.command(help=__doc__)
def main(log: Annotated[Path | None, typer.Option(help="a finished log; the generated one by default")] = None) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="weir-publish-bound-") as name:
        folder = Path(name)
        if log is None:
            (folder / "generated.jsonl").write_bytes(generate().lines)
        path, generated = log or folder / "generated.jsonl", log is None
        settings = Settings(**demo_settings(path, open_log(path).profile, generated=generated))
        settings = settings.model_copy(update={"trainer": settings.trainer.model_copy(update={"device": "cpu"})})
        store = Store(str(folder / "store"))
        ingest(store, settings.pipeline)
        published = [Published(bound, Store(str(folder / f"bound-{bound}"))) for bound in BOUNDS]
        for _ in trained(store, settings, published):
            pass
    head("bound", "windows", "moved", "deltas", f"recall@{K}", "difference", "standard error")
    exact = np.array(published[0].recalls)
    for one in published:
        off = np.array(one.recalls) - exact
        error = off.std(ddof=1) / np.sqrt(len(off))
        cells = (float(np.mean(one.moved)), float(np.mean(one.deltas)))
        row(one.bound, len(exact), *cells, f"{np.mean(one.recalls):.4f}", f"{off.mean():+.4f}", f"{error:.4f}")


if __name__ == "__main__":
    app()
