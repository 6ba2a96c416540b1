import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands read the settings of ./weir-data, which is there once a developer has run the demo."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Commands send log records to the standard error of their time, which a test's runner has closed by the end."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
