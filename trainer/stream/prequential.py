"""Prequential evaluation: test the state on a window before training on it."""

import torch

from weir.contracts import WindowManifest
from weir.trainer.items.rows import FIRST_ITEM
from weir.trainer.ranking import MetricSums
from weir.trainer.state.evaluation import Evaluation
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import Examples
from weir.trainer.step.positives import Positives
from weir.trainer.stream.scored import scored_blocks
from weir.trainer.towers.features import FeatureInputs
from weir.trainer.users.lines import Layout, UserLines

__all__ = ["evaluate"]


@torch.no_grad()
def evaluate(state: TrainerState, manifest: WindowManifest, found: Positives) -> Evaluation:
    """Return the metrics on positives sampled from a window, ranked over all items of the table.

    All ranks call it before `ingest_window`: popularity and novelty must be from before the
    window.
    """
    tested = Examples.of(found, state.table)
    known = int((tested.positives >= FIRST_ITEM).sum())
    facts = {
        "window": str(manifest.name),
        "sequence": manifest.sequence,
        "step": state.position.step,
        "events": len(tested),
        "known": known,
        "items": len(state.table),
        "seen_filtered": state.config.evaluation_filter_seen,
    }
    if not len(tested) or not len(state.table):
        return Evaluation.model_validate(facts)
    sums = _metric_sums(state, tested, _features(state, manifest, found))
    return Evaluation.model_validate(facts | sums.means(len(tested)))


def _features(state: TrainerState, manifest: WindowManifest, found: Positives) -> FeatureInputs | None:
    if state.featured_users is None or not found.features.shape[1]:
        return None
    layout = Layout.of(manifest.user_features, state.config.features.buckets)
    return state.featured_users.inputs(UserLines(layout, found.features))


def _metric_sums(state: TrainerState, examples: Examples, features: FeatureInputs | None) -> MetricSums:
    sums = MetricSums(state.config.evaluation_k)
    for block in scored_blocks(state, examples, features):
        sums.add(block.ranks(), block.ranks_by_count(state.counts[block.positives]))
        counts = state.counts[block.best(max(sums.cutoffs))]
        sums.add_recommended(*(one.double().cpu().numpy() for one in (state.counts.log_q(counts), counts)))
    return sums
