from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.trainer.step.test_training import configured
from tests.trainer.support import absorbed, batches_of, collapse
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleFile, BundleLog, CorruptArtefactError, IndexRows, Store, WindowLog
from weir.serving.loading import load_bundle
from weir.trainer.config import TrainerConfig
from weir.trainer.export import export_bundle, servable
from weir.trainer.export.cases import Cases
from weir.trainer.export.servable import Servable
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.positives import read_positives
from weir.trainer.step.step import train_step
from weir.trainer.users.lines import UserLines


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    synthetic(writer, windows=2)
    state = absorbed(store, config)
    for batch in batches_of(store, state):
        train_step(state, batch, Workers())
    return state


def cases_of(store: Store, sequence: int, length: int) -> Cases:
    log = WindowLog(store)
    found = read_positives(log, log.committed()[sequence], length)
    return Cases(found.items.copy(), found.histories.copy(), UserLines.nothing(len(found.items)))


@pytest.mark.parametrize(
    ("index", "length", "normalised"),
    [("auto", 6, True), ("auto", 6, False), ("IVF8,SQfp16", 6, True), ("auto", 3, True), ("auto", 9, True)],
)
def test_it_finds_what_the_server_finds(
    store: Store, state: TrainerState, index: str, length: int, normalised: bool
) -> None:
    """The server's own loader and search, on histories as long as the tower reads, shorter and longer ones."""
    changed = {**state.config.model_dump(), "index": index, "nprobe": 2}
    changed["tower"]["normalised"] = normalised
    state.config = TrainerConfig.model_validate(changed)
    # An item that the bundle does not know.
    manifest, cases = export_bundle(store, state), cases_of(store, 1, length)
    cases.items[0], cases.histories[1, -1] = 12345, 54321
    served = load_bundle(BundleLog(store), manifest.version)
    found = served.index.search(served.users(cases.histories), 5)
    wanted = served.rows_of(cases.items)
    hits = (found.rows == wanted[:, None]).any(1) & (wanted >= 0)
    mine = Servable.open(BundleLog(store), manifest).hits(cases, 5)
    assert not mine[0]
    assert mine.any()
    assert mine.tolist() == hits.tolist()


@pytest.mark.parametrize(("k", "candidates"), [(5, 12), (5, 3), (5, 1000)])
def test_with_a_second_phase_it_finds_the_best_of_the_candidates(
    store: Store, state: TrainerState, k: int, candidates: int
) -> None:
    on = {"rescoring": {"kind": "mixture_of_logits", "candidates": candidates, "learning_rate": 0.02}}
    state = absorbed(store, configured(state.config, on))
    for batch in batches_of(store, state):
        train_step(state, batch, Workers())
    assert state.second is not None
    with torch.no_grad():
        state.second.scorer.share.fill_(9.0)  # so that the orders differ
    manifest, cases = export_bundle(store, state), cases_of(store, 1, 6)
    served = load_bundle(BundleLog(store), manifest.version)
    users, vectors, hits = served.users(cases.histories), served.exact.vectors[np.arange(served.items)], []
    with torch.no_grad():
        second = state.second.scorer.every_pair(torch.from_numpy(users), torch.from_numpy(vectors)).numpy()
    assert served.scorer is not None
    every = IndexRows(np.broadcast_to(np.arange(served.items), second.shape))
    np.testing.assert_allclose(served.scorer(users, served.exact, every), second, rtol=1e-4, atol=1e-4)
    for user, scores, item in zip(users, second, served.rows_of(cases.items), strict=True):
        best = np.argsort(-(vectors @ user), kind="stable")[: max(k, candidates)]
        hits.append(item in best[np.argsort(-scores[best], kind="stable")[:k]])
    mine = Servable.open(BundleLog(store), manifest)
    assert mine.hits(cases, k).tolist() == hits
    # What is measured of the index is about the index.
    assert mine.index_recall(cases) == 1


def test_more_is_asked_for_than_there_is_and_nothing_at_all(store: Store, state: TrainerState) -> None:
    servable = Servable.open(BundleLog(store), export_bundle(store, state))
    assert servable.hits(cases_of(store, 0, 6), 1000).all()
    nobody = Cases(np.empty(0, np.int64), np.empty((0, 6), np.int64), UserLines.nothing(0))
    assert servable.hits(nobody, 5).shape == (0,)


@pytest.mark.parametrize("name", [BundleFile.INDEX, BundleFile.ITEMS, BundleFile.EMBEDDINGS, BundleFile.TOWER])
def test_a_file_that_is_damaged_or_of_another_kind_is_named(store: Store, state: TrainerState, name: str) -> None:
    manifest, log = export_bundle(store, state), BundleLog(store)
    entry = store.write(f"{manifest.folder}/{name}", b"something else")
    with pytest.raises(CorruptArtefactError, match=name):
        Servable.open(log, manifest)
    listed = tuple(entry if file.name == name else file for file in manifest.files)
    with pytest.raises(CorruptArtefactError, match=f"{name}: cannot be used"):
        Servable.open(log, manifest.model_copy(update={"files": listed}))


def test_a_collapsed_model_hits_less(store: Store, state: TrainerState) -> None:
    for _ in range(20):
        for batch in batches_of(store, state):
            train_step(state, batch, Workers())
    good = Servable.open(BundleLog(store), export_bundle(store, state))
    collapse(state)
    state.position.step += 1
    bad = Servable.open(BundleLog(store), export_bundle(store, state))
    cases = cases_of(store, 0, 6)
    assert bad.hits(cases, 5).mean() < 0.5 * good.hits(cases, 5).mean()


@pytest.mark.parametrize("scanned", [7, 1 << 14])
def test_the_recall_of_the_index_is_against_all_items(
    store: Store, state: TrainerState, monkeypatch: pytest.MonkeyPatch, scanned: int
) -> None:
    """Of an index that always answers with the same rows, compared piece by piece or at once."""
    monkeypatch.setattr(servable, "_SCANNED", scanned)
    monkeypatch.setattr(servable, "_DEPTH", 5)
    found, cases = Servable.open(BundleLog(store), export_bundle(store, state)), cases_of(store, 1, 6)
    asked: list[np.ndarray] = []

    class Same:
        def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, IndexRows]:
            asked.append(queries)
            return np.zeros((len(queries), k), np.float32), IndexRows(np.tile(np.arange(k), (len(queries), 1)))

    measured = replace(found, index=Same()).index_recall(cases)
    vectors = found.rows.vectors[np.arange(len(found.rows))]
    best = np.argsort(-(asked[0] @ vectors.T), axis=1)[:, :5]
    assert measured == pytest.approx(np.isin(best, np.arange(5)).mean())
    assert 0 < measured < 1


def test_the_same_cases_are_answered_once(store: Store, state: TrainerState) -> None:
    bundle, cases = Servable.open(BundleLog(store), export_bundle(store, state)), cases_of(store, 1, 6)
    first = bundle.hits(cases, 5)
    assert bundle.hits(cases, 5) is first
    assert bundle.hits(cases, 20).sum() > first.sum()
    assert bundle.hits(cases.take(slice(0, 3)), 5).tolist() == first[:3].tolist()
    assert bundle.hits(cases, 5).tolist() == first.tolist()
