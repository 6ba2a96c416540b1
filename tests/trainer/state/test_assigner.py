import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import faiss
import numpy as np
import pytest
import torch

from tests.ranks import lines_of_ranks
from weir.trainer.ranks.workers import Workers
from weir.trainer.state import assigner
from weir.trainer.state.assigner import Assigner, assign

D = 16


def centroids_and_vectors() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    centroids = draw.normal(size=(50, D))
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    return centroids.astype(np.float32), draw.normal(size=(3000, D)).astype(np.float32)


def quantizer_of(centroids: np.ndarray) -> Any:
    index = faiss.IndexFlatIP(D)
    index.add(centroids)
    return index


@pytest.mark.parametrize("block", [7, 1 << 16])
def test_a_vector_gets_the_list_of_the_centroid_to_which_its_cosine_is_largest(block: int) -> None:
    centroids, vectors = centroids_and_vectors()
    chosen = np.random.default_rng(2).permutation(len(vectors))[:500]
    with patch.object(assigner, "_BLOCK", block):
        whole, some = assign(quantizer_of(centroids), vectors), assign(quantizer_of(centroids), vectors, chosen)
    cosines = vectors @ centroids.T / np.linalg.norm(vectors, axis=1, keepdims=True)
    for found, wanted in ((whole, cosines), (some, cosines[chosen])):
        assert found.lists.tolist() == wanted.argmax(1).tolist()
        np.testing.assert_allclose(found.cosines, wanted.max(1), atol=1e-5)
    assert some.take(np.array([4, 2])).lists.tolist() == some.lists[[4, 2]].tolist()


def test_a_vector_of_zeros_has_a_list_and_a_cosine() -> None:
    found = assign(quantizer_of(centroids_and_vectors()[0]), np.zeros((1, D), np.float32))
    assert found.lists[0] >= 0
    assert found.cosines[0] == 0


def test_one_rank_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    centroids, vectors = centroids_and_vectors()
    np.save(tmp_path / "vectors.npy", vectors)
    found = Assigner(Workers(), torch.clone).assign(tmp_path / "vectors.npy", np.arange(3000), centroids)
    assert found.lists.tolist() == assign(quantizer_of(centroids), vectors).lists.tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.npy"]


def test_ranks_find_what_one_finds(tmp_path: Path) -> None:
    assert lines_of_ranks(3, Path(__file__).with_name("assigners_of_ranks.py"), tmp_path) == [4302] * 3


def test_other_questions_are_for_others() -> None:
    assert not Assigner(Workers(), torch.clone).answer("weight")
