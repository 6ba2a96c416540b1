"""From a log with user features to answers for users of whom nothing else is known.

Taste is a matter of country and age alone, and half of all events are the first of their user. The cut-off, 20, is as
many items as a taste has: within a taste there is nothing to know.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.integration.feature_streams import HOUR, ORIGIN, WINDOWS, learned
from tests.serving.process import ServerProcess
from weir.contracts import PADDING_KEY, Store, WindowLog
from weir.serving.client import RetrievalClient, by_history, by_user
from weir.serving.monitor.recall import ask, sample
from weir.trainer.export import export_bundle
from weir.trainer.ranks.workers import deterministic
from weir.trainer.step.positives import Positives

EVENTS = 1200
COUNTRIES, LEVELS, ITEMS = 20, 2, 20
"""A taste is a country and a level of age; items of each."""

NAMED: dict[str, dict[str, list[str]]] = {
    "none": {},
    "country": {"categorical": ["country"]},
    "both": {"categorical": ["country"], "dense": ["age"]},
}


def said_of(taste: int, draw: np.random.Generator) -> dict[str, Any]:
    """What the log says of a user with this taste."""
    return {"country": f"country {taste % COUNTRIES}", "age": 20.0 + 40.0 * (taste // COUNTRIES) + draw.integers(10)}


def write_log(path: Path, seed: int) -> None:
    """Write events of users who keep to their taste nine times in ten; each has one, two or three."""
    draw = np.random.default_rng(seed)
    tastes, left = COUNTRIES * LEVELS, list[tuple[int, int]]()
    with path.open("w") as file:
        for number, second in enumerate(np.sort(draw.integers(WINDOWS * HOUR, size=WINDOWS * EVENTS)).tolist()):
            if not left or draw.random() < 0.5:
                left.append((number, int(draw.integers(tastes))))
            place = int(draw.integers(max(len(left) - 200, 0), len(left)))
            user, taste = left[place]
            liked = taste if draw.random() < 0.9 else int(draw.integers(tastes))
            event = {"user_id": f"u{user}", "item_id": f"{liked}-{draw.integers(ITEMS)}", "timestamp": ORIGIN + second}
            file.write(json.dumps(event | said_of(taste, draw)) + "\n")


def of_new_users(_window: int, found: Positives) -> Positives:
    chosen = (found.histories == PADDING_KEY).all(1)
    return Positives(*(column[chosen] for column in found))


@pytest.fixture(scope="module", params=[0, 1])
def figures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("user-features")
    torch.set_num_threads(1)
    write_log(folder / "log.jsonl", request.param)
    with deterministic():
        stores = {name: Store(str(folder / name)) for name in NAMED}
        yield {
            name: (*learned(store, folder / "log.jsonl", of_new_users, user_features=NAMED[name]), store)
            for name, store in stores.items()
        }


def test_features_find_what_new_users_want(figures: dict[str, Any]) -> None:
    recall = {name: round(of["recall@20"], 4) for name, (_, of, _) in figures.items()}
    print(recall)  # noqa: T201
    assert recall["country"] > 3 * recall["none"]
    assert recall["both"] > 1.15 * recall["country"]


def test_a_server_answers_new_users_by_what_is_said_of_them_and_the_monitor_asks_likewise(
    figures: dict[str, Any],
) -> None:
    state, of, store = figures["both"]
    version = export_bundle(store, state).version
    draw, found = np.random.default_rng(7), list[float]()
    with ServerProcess(store) as server, RetrievalClient(server.target) as client:
        server.serving(version)
        for taste in range(COUNTRIES * LEVELS):
            said = said_of(taste, draw)
            [hits] = client.retrieve([by_user("nobody", 20, features=said)]).hits
            assert (hits.fallback, hits.missing_features) == (False, [])
            found.append(np.mean([item.startswith(f"{taste}-") for item in hits.item_ids]))
        assert client.retrieve([by_user("nobody")]).hits[0].fallback
        assert np.mean(found) > 0.6
        windows = WindowLog(store)
        newest = windows.newest(1)[0]
        items = windows.items(newest)
        ids = dict(zip(items["item_key"].to_pylist(), items["item_id"].to_pylist(), strict=True))
        examples = sample(windows, newest, ids, 250, 0)
        tally = ask(client, examples, [20], batch=50, most=1000, unseen_by=lambda _: None)
        silent = [hits.item_ids for hits in client.retrieve([by_history(one.history, 20) for one in examples]).hits]
        without = np.mean([one.item in ids for one, ids in zip(examples, silent, strict=True)])
        # New users count, too, and those with a history are told from others by more than it.
        assert tally.count("model") == len(examples)
        print({"asked with features": round(tally.mean("model")[20], 4), "without": round(float(without), 4)})  # noqa: T201
        assert tally.mean("model")[20] > 1.2 * without
        assert tally.mean("model")[20] > 0.8 * of["recall@20"]
