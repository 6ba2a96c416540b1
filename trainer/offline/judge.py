"""Test of one model against the simple methods on the same cases, with its results as Parquet files.

| file | a row is | columns |
|---|---|---|
| `items-seed<n>.parquet` | an item | `item_id`, `vector` normalised as in the search, `interactions` in training |
| `cases-seed<n>.parquet` | a test case | `case`, `user_id`, `vector`, `item_ids` best first, their `scores` |
| `ranks.parquet` | a relevant item of a case | `case`, `user_id`, `item_id`, the rank by each method or null |

Scores are inner products of the two vectors. Files of the same name are replaced, each atomically.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from weir.contracts import Store
from weir.trainer.offline.compare import Plan
from weir.trainer.offline.contest import LARGEST, Contest, Peer, PeerReport
from weir.trainer.offline.data import Interactions
from weir.trainer.offline.evaluator import Difference, EvaluationResult, Evaluator
from weir.trainer.offline.fit import Fit, Step, fit
from weir.trainer.offline.model import OfflineModel
from weir.trainer.ranking import Ranked, means
from weir.trainer.ranks.workers import deterministic

__all__ = ["Comparison", "Outcome", "SeedReport", "against_peers", "export_model", "export_ranks"]


SeedReport = Callable[[int, Step], None]
"""Called after each step, with the seed of the model."""


def export_model(
    folder: Path, interactions: Interactions, test: Evaluator, model: OfflineModel, ranked: Ranked
) -> None:
    """Write the files of a model: vectors, and rankings of the test cases with scores."""
    seed, items = model.config.seed, model.vectors()[1].cpu()
    catalogue = {"item_id": interactions.item_ids, "vector": _lists(items), "interactions": test.counts}
    _write(folder, f"items-seed{seed}.parquet", catalogue)
    users = test.user_vectors(model).cpu()
    shown = torch.from_numpy(ranked.top.astype(np.int64))
    # Case by case: a tensor of the ranked items' vectors for all cases would not fit in memory.
    scores = torch.cat([items[top[top >= 0]] @ user for top, user in zip(shown, users, strict=True)])
    offsets = np.concatenate([[0], (ranked.top >= 0).sum(1).cumsum()])
    cases = {
        "case": np.arange(len(users)),
        "user_id": interactions.user_ids[test.cases.users],
        "vector": _lists(users),
        "item_ids": pa.ListArray.from_arrays(offsets, pa.array(interactions.item_ids[ranked.top[ranked.top >= 0]])),
        "scores": pa.ListArray.from_arrays(offsets, scores.numpy()),
    }
    _write(folder, f"cases-seed{seed}.parquet", cases)


def export_ranks(folder: Path, interactions: Interactions, test: Evaluator, rankings: Mapping[str, Ranked]) -> None:
    """Write the rank of each relevant item by every method of `rankings`."""
    relevant = test.cases.relevant
    case = relevant.list_numbers
    columns = {
        "case": case,
        "user_id": interactions.user_ids[test.cases.users[case]],
        "item_id": interactions.item_ids[relevant.values],
    }
    for name, ranked in rankings.items():
        columns[name] = pa.array(ranked.ranks, mask=ranked.ranks > ranked.depth)
    _write(folder, "ranks.parquet", columns)


def _lists(vectors: Tensor) -> pa.Array:
    """Return vectors (n, d) as n lists."""
    return pa.FixedSizeListArray.from_arrays(vectors.numpy().ravel(), vectors.shape[1])


def _write(folder: Path, name: str, columns: Mapping[str, object]) -> None:
    """Write a table as a Parquet file, atomically."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(columns)), sink)
    Store(str(folder)).write(name, sink.getvalue().to_pybytes())


@dataclass(frozen=True)
class Comparison:
    """A peer with its tuned settings and mean metrics, and the model's lead over the peer in each compared metric.

    `by_seed` has the lead of each seed separately, in order.
    """

    name: str
    settings: dict[str, float]
    metrics: dict[str, float]
    leads: dict[str, Difference]
    by_seed: dict[str, tuple[Difference, ...]]


@dataclass(frozen=True)
class Outcome:
    """Metrics of a model and of popularity on `cases` test cases, the peers, and the training of each seed.

    The model's metrics are means over its seeds. `peers` has popularity first; `left_out` gives the reason for each
    missing peer. `new_share` is the share of relevant items that are not in training, which no method ranks.
    """

    cases: int
    new_share: float
    headline: str
    model: EvaluationResult
    popularity: EvaluationResult
    peers: tuple[Comparison, ...]
    left_out: dict[str, str]
    training: tuple[Fit, ...]

    @property
    def difference(self) -> Difference:
        """The model's lead over popularity in the headline metric."""
        return self.peers[0].leads[self.headline]


def against_peers(
    plan: Plan,
    report: SeedReport | None = None,
    *,
    seeds: int = 1,
    largest: int = LARGEST,
    told: PeerReport | None = None,
    out: Path | None = None,
) -> Outcome:
    """Train the model of a plan and test it against the peers; without validation cases, all steps are trained.

    Parameters
    ----------
    report
        Called after each step.
    seeds
        Number of models, with consecutive seeds from the seed of the plan.
    largest
        Most items for which item-kNN and EASE are computed.
    told
        Called with the name of each peer before it is tuned.
    out
        Folder for vectors, scores and ranks (`weir.trainer.offline.judge`); None: no export.

    Raises
    ------
    TooFewError
        If there are too few interactions to train on.
    ValueError
        If the loss turns NaN or infinite.
    """
    validation, test = evaluators = plan.evaluators()
    first = plan.base.seed
    runs = {seed: _trained(plan, seed, evaluators, report, out) for seed in range(first, first + seeds)}
    ranked = [ranking for ranking, _ in runs.values()]
    contest = Contest(plan.interactions, plan.split.train, plan.rules, largest)
    peers = contest.run(validation, test, told)
    if out:
        rankings = {f"model, seed {seed}": ranking for seed, (ranking, _) in runs.items()}
        export_ranks(out, plan.interactions, test, rankings | {peer.name: peer.ranked for peer in peers})
    return Outcome(
        len(test.cases),
        test.new_share,
        plan.rules.headline,
        test.result(*ranked),
        test.result(peers[0].ranked),
        tuple(_compared(test, ranked, peer) for peer in peers),
        contest.left_out,
        tuple(training for _, training in runs.values()),
    )


def _trained(
    plan: Plan,
    seed: int,
    evaluators: tuple[Evaluator, Evaluator],
    report: SeedReport | None,
    out: Path | None,
) -> tuple[Ranked, Fit]:
    """Train a model with one seed, and rank the test cases with it."""
    validation, test = evaluators
    config = plan.base.model_copy(update={"seed": seed})
    with deterministic():
        model = OfflineModel.fresh(config, plan.interactions, plan.split.train)
        held_out = validation if len(validation.cases) else None
        told = partial(report, seed) if report else None
        training = fit(model, plan.interactions, plan.split.train, plan.budget, validation=held_out, report=told)
        ranked = test.rank(model)
        if out:
            export_model(out, plan.interactions, test, model, ranked)
        return ranked, training


def _compared(test: Evaluator, models: Sequence[Ranked], peer: Peer) -> Comparison:
    """Compare the rankings of all seeds with a peer's."""
    leads = {metric: test.difference(models, peer.ranked, metric) for metric in test.rules.compared}
    by_seed = {
        metric: tuple(test.difference([model], peer.ranked, metric) for model in models)
        for metric in test.rules.compared
    }
    return Comparison(peer.name, peer.settings, means(peer.ranked, test.rules.cutoffs), leads, by_seed)
