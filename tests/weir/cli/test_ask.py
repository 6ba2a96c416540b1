"""``weir query`` against a server whose bundle knows user features."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, user_weights, write_bundle
from weir.cli.main import app
from weir.contracts import Store


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("store")
    store = Store(str(folder))
    write_bundle(store, "v1", Catalogue.random(), user_features=user_weights())
    with ServerProcess(store) as server:
        server.serving("v1")
        yield folder, server.target


def query(target: tuple[Path, str], *arguments: str) -> Result:
    folder, address = target
    return CliRunner().invoke(app, ["query", "nobody", "--store", str(folder), "--target", address, *arguments])


def said(*features: str) -> list[str]:
    return [part for one in features for part in ("--feature", one)]


def test_what_is_known_of_an_unknown_user_is_an_answer(target: tuple[Path, str]) -> None:
    assert "nobody is unknown so far: these are the popular items" in query(target).output
    features = said("country=de", "langs=de", "langs=en", "age=31", "size=3")
    answer = json.loads(query(target, *features, "--json").output)
    assert (answer["fallback"], answer["missing_features"]) == (False, ["size"])
    other = json.loads(query(target, *said("country=at", "langs=de", "age=31"), "--json").output)
    assert [hit["item_id"] for hit in other["hits"]] != [hit["item_id"] for hit in answer["hits"]]
    output = query(target, *features).output
    assert "the bundle knows no feature size: pipeline.user_features names them" in output


@pytest.mark.parametrize(
    ("feature", "problem"),
    [
        ("country", "--feature country: must be NAME=VALUE"),
        ("=de", "--feature =de: must be NAME=VALUE"),
        ("age=old", "--feature age=old: age is a number, 'old' is none"),
    ],
)
def test_a_feature_that_is_none_is_named(target: tuple[Path, str], feature: str, problem: str) -> None:
    refused = query(target, *said(feature))
    assert str(refused.exception) == problem or problem in refused.output
    assert refused.exit_code
