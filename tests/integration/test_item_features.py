"""From a log with features to better figures on items that have only just come.

Taste is a matter of genre and price alone, and every window brings new items, which stay. An item of the window before
has had two to three events: its id says little yet, its features what matters. The cut-off, 20, is as many items as a
taste has in the end. Within a taste there is nothing to know but how often an item occurs, which is not tested here.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.integration.feature_streams import HOUR, ORIGIN, WINDOWS, learned
from weir.contracts import Store, hash_ids
from weir.trainer.ranks.workers import deterministic
from weir.trainer.step.positives import Positives

EVENTS, USERS = 1200, 400
GENRES, LEVELS, NEW = 20, 2, 2
"""New items of each taste, which is a genre and a level of prices, per window."""

NAMED = {"none": {}, "genre": {"categorical": ["genre"]}, "both": {"categorical": ["genre"], "dense": ["price"]}}


def write_log(path: Path, seed: int) -> None:
    """Write events in which users keep to their taste nine times in ten, and take any of its items alike."""
    draw = np.random.default_rng(seed)
    tastes = draw.integers(GENRES * LEVELS, size=USERS)
    with path.open("w") as file:
        for window in range(WINDOWS):
            for second in np.sort(draw.integers(HOUR, size=EVENTS)).tolist():
                user = int(draw.integers(USERS))
                taste = int(tastes[user] if draw.random() < 0.9 else draw.integers(GENRES * LEVELS))
                number = int(draw.integers(NEW))
                event = {
                    "user_id": f"u{user}",
                    "item_id": f"{draw.integers(window + 1)}-{taste}-{number}",
                    "timestamp": ORIGIN + window * HOUR + second,
                    "genre": [f"genre {taste % GENRES}", "any"],
                    "price": 10.0 + 50.0 * (taste // GENRES) + number,
                }
                file.write(json.dumps(event) + "\n")


def about_fresh_items(window: int, found: Positives) -> Positives:
    """The events on items that were new in the window before."""
    ids = [f"{window - 1}-{taste}-{number}" for taste in range(GENRES * LEVELS) for number in range(NEW)]
    chosen = np.isin(found.items, hash_ids(pa.array(ids)))
    return Positives(*(column[chosen] for column in found))


@pytest.mark.parametrize("seed", [0, 1])
def test_features_find_fresh_items_that_ids_alone_do_not(tmp_path: Path, seed: int) -> None:
    torch.set_num_threads(1)
    write_log(tmp_path / "log.jsonl", seed)
    with deterministic():
        found = {
            name: learned(Store(str(tmp_path / name)), tmp_path / "log.jsonl", about_fresh_items, item_features=of)[1]
            for name, of in NAMED.items()
        }
    print({name: [round(of[f"recall@{k}"], 4) for k in (20, 100)] for name, of in found.items()})  # noqa: T201
    recall = {name: of["recall@20"] for name, of in found.items()}
    assert recall["genre"] > 1.2 * recall["none"]
    assert recall["both"] > 1.05 * recall["genre"]
