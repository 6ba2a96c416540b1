from pathlib import Path

import pytest

from contracts import Store
from tests.serving.support import Catalogue


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue.random()
