"""Export test results as Parquet files: vectors, rankings with scores, and ranks by all methods.

| file | a row is | columns |
|---|---|---|
| `items-seed<n>.parquet` | an item | `item_id`, `vector` normalised as in the search, `interactions` in training |
| `cases-seed<n>.parquet` | a test case | `case`, `user_id`, `vector`, `item_ids` best first, their `scores` |
| `ranks.parquet` | a relevant item of a case | `case`, `user_id`, `item_id`, the rank by each method or null |

Scores are inner products of the two vectors. Files of the same name are replaced, each atomically.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from weir.contracts import Store
from weir.trainer.offline.data import Interactions
from weir.trainer.offline.evaluator import Evaluator
from weir.trainer.offline.model import OfflineModel
from weir.trainer.ranking import Ranked

__all__ = ["export_model", "export_ranks"]


def export_model(
    folder: Path, interactions: Interactions, test: Evaluator, model: OfflineModel, ranked: Ranked
) -> None:
    """Write a model's vectors, and its rankings of the test cases with their scores."""
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
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(columns)), sink)
    Store(str(folder)).write(name, sink.getvalue().to_pybytes())
