from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.page.atlas import Atlas, draw, families, project
from weir.serving.client import RetrievalClient

SHAPES = st.tuples(st.integers(0, 40), st.integers(1, 8), st.integers(0, 2**32 - 1))


def vectors(shape: tuple[int, int, int]) -> np.ndarray:
    rows, width, seed = shape
    return np.random.default_rng(seed).normal(size=(rows, width))


@given(SHAPES)
def test_a_plane_shows_the_largest_eigenvalues_of_the_covariance(shape: tuple[int, int, int]) -> None:
    found = vectors(shape)
    places, shown = project(found)
    assert places.shape == (len(found), 2)
    assert np.isfinite(places).all()
    if len(found) > 1:
        values = np.sort(np.linalg.eigvalsh(np.atleast_2d(np.cov(found.T))))[::-1]
        assert shown == pytest.approx(values[:2].sum() / values.sum())


@given(st.integers(3, 40), st.integers(0, 2**32 - 1))
def test_points_of_a_plane_keep_their_distances_up_to_one_scale(rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    plane = rng.normal(size=(rows, 2))
    basis, _ = np.linalg.qr(rng.normal(size=(7, 2)))
    places, shown = project(plane @ basis.T + 3)
    assert shown == pytest.approx(1)

    def distances(points: np.ndarray) -> np.ndarray:
        return np.linalg.norm(points[:, None] - points[None], axis=2)

    before, after = distances(plane), distances(places)
    np.testing.assert_allclose(after * before[0, 1], before * after[0, 1], atol=1e-6 * before.max() * after.max())


@given(st.lists(st.sampled_from(["jazz-1", "jazz-2", "dub_3", "x", "-y", "a:b"]), max_size=9))
def test_families_are_the_first_parts_of_ids(ids: list[str]) -> None:
    first = {"jazz-1": "jazz", "jazz-2": "jazz", "dub_3": "dub", "x": "x", "-y": "-y", "a:b": "a"}
    names, numbers = families(ids)
    if names:
        assert [names[number] for number in numbers] == [first[item] for item in ids]
    else:
        assert len({first[item] for item in ids}) < 2


def test_ids_without_few_families_have_none() -> None:
    assert families([str(number) for number in range(100)]) == ([], [])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RetrievalClient]:
    store = Store(str(tmp_path_factory.mktemp("store")))
    write_bundle(store, "v1", Catalogue.random())
    with ServerProcess(store) as process:
        process.serving("v1")
        with RetrievalClient(process.target) as asked:
            yield asked


def test_a_map_shows_the_known_items_where_their_vectors_are(client: RetrievalClient) -> None:
    ids = [f"item-{number}" for number in range(150)]
    found = draw(client, "v1", [*ids, "nobody-knows-it"], None)
    assert found.ids == tuple(ids)
    np.testing.assert_allclose(np.abs(found.places), np.abs(project(Catalogue.random().vectors[:150])[0]), atol=1e-4)


def test_the_next_map_is_turned_as_the_one_before(client: RetrievalClient) -> None:
    ids = [f"item-{number}" for number in range(150)]
    first = draw(client, "v1", ids, None)
    angle = 2.0
    turn = np.array([[np.cos(angle), np.sin(angle)], [np.sin(angle), -np.cos(angle)]])
    before = Atlas("v0", first.ids[50:], first.places[50:] @ turn, first.shown)
    np.testing.assert_allclose(draw(client, "v1", ids, before).places, first.places @ turn, atol=1e-6)
