from pathlib import Path

import pytest

from tests.serving.support import Catalogue
from weir.contracts import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue.random()
