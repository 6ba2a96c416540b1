"""Both bundles of a real server, asked about the same events, against brute force."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Key, Store, hash_id
from weir.contracts.variants import MAIN, line_of, version_of
from weir.serving.client import RetrievalClient, RetrievalError
from weir.serving.monitor.recall import Example
from weir.serving.monitor.variants.paired import Pair, PairedHits, ask_both

K = 5
OLD, NEW = Catalogue.random(seed=0), Catalogue.random(seed=1)
PAIR: Pair = ("v1", "v1--new")


@contextmanager
def serving_both(store: Store) -> Iterator[RetrievalClient]:
    for variant, catalogue in ((MAIN, OLD), ("new", NEW)):
        write_bundle(line_of(store, variant), version_of("v1", variant), catalogue, variant=variant)
    with ServerProcess(store, variants=("new",)) as server, RetrievalClient(server.target) as client:
        server.said("serving bundle v1--new")
        server.serving("v1")
        assert client.info().loaded == (("main", "v1"), ("new", "v1--new"))
        yield client


def examples(count: int) -> list[Example]:
    random = np.random.default_rng(0)
    made = []
    for number in range(count):
        history = [OLD.ids[row] for row in random.integers(0, 200, 3)]
        item = OLD.top(OLD.user(history), 10, history)[number % 10]
        made.append(Example(item, hash_id(item), history, 0, history, Key(number // 3)))
    return made


def test_hits_agree_with_brute_force_by_user(store: Store) -> None:
    events = examples(30)
    with serving_both(store) as client:
        found = ask_both(client, events, K, batch=7, pair=lambda: PAIR)
    assert not found.skipped
    wanted = [[one.item in each.top(each.user(one.history), K, one.history) for each in (OLD, NEW)] for one in events]
    assert np.allclose(found.means(), np.reshape(wanted, (10, 3, 2)).mean(axis=1))


def test_a_version_that_is_gone_skips_its_events_and_no_more(store: Store) -> None:
    pairs = iter([PAIR, ("v1", "v0--new"), ("v0", "v1--new"), "trained", PAIR])
    with serving_both(store) as client:
        found = ask_both(client, examples(25), K, batch=5, pair=lambda: next(pairs))
    assert found.skipped == {"swapped": 10, "trained": 5}
    assert sum(map(len, found.hits.values())) == 10


def test_without_events_there_are_no_means() -> None:
    assert PairedHits().means().shape == (0, 2)


def test_other_errors_are_the_callers(store: Store) -> None:
    with RetrievalClient("127.0.0.1:1", 0.5) as client, pytest.raises(RetrievalError):
        ask_both(client, examples(2), K, batch=5, pair=lambda: PAIR)
