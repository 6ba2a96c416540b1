"""Started by torchrun: exports of a state that ranks share, and of one that rank 0 has alone; both publish the same.

Items come, go, and change their features in windows; between them all vectors of features move, and some rows' own.
"""

import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.trainer.export.held import HeldKeeper, export_or_none
from tests.trainer.export.test_content import HOUR, a_stream, facts
from tests.trainer.support import absorb
from tests.trainer.windows import FEATURES
from weir.contracts import BundleManifest, Store, WindowLog
from weir.trainer.export import content, export_bundle, planner
from weir.trainer.export.planner import ExportPlanner
from weir.trainer.export.servable import RecentCases
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.assigner import Assigner
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState

CONFIG = TrainerConfig(
    device="cpu", publish_bound=0.05, item_ttl_seconds=4 * HOUR / 1000, bundles_kept=99, bundle_chain=5
)
WITH_LISTS = CONFIG.model_copy(update={"index": "IVF8,SQfp16"})
_WINDOWS = 9
"""Of the stream, in five of which the table grows."""

_FIRST_EXPORTED = 3
_RESTARTED = 7
"""The window before whose export all start again from a checkpoint."""


class Line:
    """A state, and the store that its bundles go to."""

    def __init__(self, store: Store, config: TrainerConfig, workers: Workers | None, *, beside: bool = False) -> None:
        self.store, self.workers, self.config, self.beside = store, workers or Workers(), config, beside
        self.state, self.planner = TrainerState.fresh(config, workers=workers), self.new_keeper()
        self.recent = RecentCases(Store(f"{store.url}-none"), config)

    def learn(self, log: WindowLog, sequence: int) -> None:
        """Take in a window, and move what steps on it would move."""
        manifest, state, draw = log.committed()[sequence], self.state, torch.Generator().manual_seed(sequence)
        absorb(state, log, manifest)
        state.position.trained_window, state.position.trained_sequence = str(manifest.name), sequence
        with torch.no_grad():
            for parameter in () if state.featured is None else state.featured.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.02)
        rows = state.live[torch.randperm(len(state.table), generator=draw)[:20]].sort().values
        gradient = torch.randn(20, CONFIG.tower.dimension, generator=draw)
        own = state.embeddings.places.own(rows)
        state.embeddings.adagrad_step(rows[own], gradient[own], 0.1)

    def start_again(self) -> None:
        """Go on from a checkpoint."""
        checkpoints = CheckpointLog(self.store)
        checkpoints.save(self.state, self.workers)
        found = checkpoints.load(self.config, self.workers)
        assert found is not None
        self.state, self.planner = found, self.new_keeper()

    def new_keeper(self) -> ExportPlanner:
        return HeldKeeper() if self.beside else ExportPlanner()

    def export(self) -> BundleManifest | None:
        """Export; None where the bundle is made beside the stream, to be published by another call."""
        if isinstance(self.planner, HeldKeeper):
            return export_or_none(self.store, self.state, self.recent, self.planner)
        return export_bundle(self.store, self.state, self.recent, planner=self.planner)


def follow_beside(folder: str, config: TrainerConfig, features: dict[str, dict[str, Any]], workers: Workers) -> int:
    """Export along a stream, and learn a window while ranks have a bundle of all items made; return how many were."""
    if workers.is_first:
        a_stream(Store(f"{folder}/windows"), 1, features)
    workers.nodes()
    log, made = WindowLog(Store(f"{folder}/windows")), 0
    alone, shared = (
        Line(Store(f"{folder}/alone"), config, None),
        Line(Store(f"{folder}/shared"), config, workers, beside=True),
    )
    wanted: list[BundleManifest | None] = []

    def compare() -> None:
        nonlocal made
        if wanted:
            found, one = shared.export(), wanted.pop()
            assert found is not None
            assert one is not None
            assert facts(found) == facts(one)
            made += 1
        wanted.append(alone.export())
        if (found := shared.export()) is not None:
            one = wanted.pop()
            assert one is not None
            assert facts(found) == facts(one)

    for sequence in range(_WINDOWS):
        for line in (alone, shared) if workers.is_first else (shared,):
            line.learn(log, sequence)
        if isinstance(shared.planner, HeldKeeper):
            # Other ranks answer nothing meanwhile.
            shared.planner.let_go()
        if sequence >= _FIRST_EXPORTED:
            workers.first(compare, shared.state.answer)
    return made


def follow(folder: str, config: TrainerConfig, features: dict[str, dict[str, Any]] | None, workers: Workers) -> int:
    """Export along a stream of windows; return how many bundles were deltas."""
    if workers.is_first:
        a_stream(Store(f"{folder}/windows"), 1, features)
    workers.nodes()  # the windows are there
    log, deltas = WindowLog(Store(f"{folder}/windows")), 0
    alone, shared = Line(Store(f"{folder}/alone"), config, None), Line(Store(f"{folder}/shared"), config, workers)
    for sequence in range(_WINDOWS):
        for line in (alone, shared) if workers.is_first else (shared,):
            line.learn(log, sequence)
            if sequence == _RESTARTED:
                line.start_again()
        if sequence < _FIRST_EXPORTED:
            continue
        made: list[Any] = []
        workers.first(lambda made=made, line=shared: made.append(line.export()), shared.state.answer)  # type: ignore[misc]
        if workers.is_first:
            wanted = alone.export()
            assert wanted is not None
            assert facts(made[0]) == facts(wanted)
            assert shared.planner.compared == alone.planner.compared
            assert sequence != _RESTARTED or (made[0].removed and shared.planner.compared < 1)
            deltas += made[0].depth > 0
    return deltas


def main(folder: str) -> None:
    streams = (("with", CONFIG, FEATURES), ("without", CONFIG, None), ("lists", WITH_LISTS, None))
    # Items are few, and still their lists are found together.
    with Workers.from_environment("cpu") as workers, patch.object(content, "_SHARED", 1):
        with patch.object(Assigner, "assign", autospec=True, side_effect=Assigner.assign) as of_a_machine:
            deltas = [follow(f"{folder}/{name}", config, found, workers) for name, config, found in streams]
        several = patch.dict(os.environ, {"GROUP_WORLD_SIZE": "2"})
        with several, patch.object(Assigner, "assign_rows", autospec=True, side_effect=Assigner.assign_rows) as of_many:
            deltas.append(follow(f"{folder}/machines", WITH_LISTS, FEATURES, workers))
        assert of_a_machine.called == of_many.called == workers.is_first
        with patch.object(planner, "calls_for_compaction", return_value=False):
            beside = follow_beside(
                f"{folder}/beside", WITH_LISTS.model_copy(update={"bundle_chain": 1}), FEATURES, workers
            )
        assert beside >= 2 or not workers.is_first
        Path(folder, f"rank{workers.rank}").write_text(str(min(deltas)))


if __name__ == "__main__":
    main(sys.argv[1])
