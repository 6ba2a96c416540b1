"""Prequential evaluation: test the state on a window before it trains on it."""

import torch

from contracts import WindowManifest
from trainer.items.rows import FIRST_ITEM
from trainer.ranking import MetricSums
from trainer.state.evaluation import Evaluation
from trainer.state.trainer_state import TrainerState
from trainer.step.batches import Examples
from trainer.step.positives import Positives
from trainer.step.seeds import Purpose, generator
from trainer.stream.scored import scored_blocks

__all__ = ["evaluate"]


@torch.no_grad()
def evaluate(state: TrainerState, manifest: WindowManifest, found: Positives) -> Evaluation:
    """Return the metrics of up to `evaluation_examples` positives, ranked over all items of the table.

    All ranks call it before `TrainerState.ingest_window`: popularity and novelty must be those of the moment before the
    window.
    """
    sampled = _sample(state, manifest, found)
    known = int((sampled.positives >= FIRST_ITEM).sum())
    facts = {
        "window": str(manifest.name),
        "sequence": manifest.sequence,
        "step": state.position.step,
        "events": len(sampled),
        "known": known,
        "items": len(state.table),
        "seen_filtered": state.config.evaluation_filter_seen,
    }
    if not len(sampled) or not len(state.table):
        return Evaluation.model_validate(facts)
    return Evaluation.model_validate(facts | _metric_sums(state, sampled).means(len(sampled)))


def _sample(state: TrainerState, manifest: WindowManifest, found: Positives) -> Examples:
    draw = generator(state.config.seed, Purpose.EVALUATION, manifest.sequence)
    order = torch.randperm(len(found.items), generator=draw)[: state.config.evaluation_examples].numpy()
    return Examples.of(Positives(*(column[order] for column in found)), state.table)


def _metric_sums(state: TrainerState, examples: Examples) -> MetricSums:
    sums = MetricSums(state.config.evaluation_k)
    for block in scored_blocks(state, examples):
        sums.add(block.ranks(), block.ranks_by_count(state.counts[block.positives]))
        best = block.best(max(sums.cutoffs))
        sums.add_recommended(*(one[best].double().cpu().numpy() for one in (state.log_q, state.counts)))
    return sums
