import errno

import grpc
import pytest

from contracts import CorruptArtefactError, StoreFormatError, UnfitStoreError
from pipelines.lock import BusyStoreError
from serving.client import RetrievalError
from trainer.export import ExportError
from trainer.state.checkpoint import CheckpointMismatchError, DamagedCheckpointError
from weir.cli.errors import explain
from weir.config import SettingsError
from weir.errors import CommandError, UsageError

INVALID = grpc.StatusCode.INVALID_ARGUMENT
CLEAR = [
    *(BusyStoreError, CheckpointMismatchError, ExportError, StoreFormatError, UnfitStoreError),
    *(CommandError, OSError, PermissionError),
]


@pytest.mark.parametrize("kind", CLEAR)
def test_a_message_that_says_it_all_is_the_line(kind: type[Exception]) -> None:
    assert explain(kind("what to do")) == (["what to do"], 1)


def test_a_damaged_file_gets_a_hint_unless_its_error_has_one() -> None:
    assert explain(CorruptArtefactError("f", "cut")) == (
        ["f: cut; restore it from a copy; without one, start with another --store"],
        1,
    )
    assert explain(DamagedCheckpointError("f", "cut, remove it")) == (["f: cut, remove it"], 1)


def test_wrong_usage_has_a_status_of_its_own() -> None:
    assert explain(UsageError("no")) == (["no"], 2)
    assert explain(SettingsError(["a = 1: no", "b = 2: no"])) == (
        ["these settings cannot be used:", "  a = 1: no", "  b = 2: no"],
        2,
    )


def test_refusals_name_their_fields_and_silence_names_the_way_to_a_server() -> None:
    refused = RetrievalError(INVALID, "bad", "INVALID", {"queries[0].k": "is 0"})
    assert explain(refused) == (
        ["the server refused: INVALID_ARGUMENT (INVALID): bad", "  queries[0].k: is 0"],
        1,
    )
    silent = explain(RetrievalError(grpc.StatusCode.UNAVAILABLE, "nobody"))
    assert silent is not None
    assert silent[0] == [
        "no server answers: start one with `weir up` or `weir serve`, or name it with --target (UNAVAILABLE: nobody)"
    ]
    warming = explain(RetrievalError(grpc.StatusCode.UNAVAILABLE, "no bundle", "NO_BUNDLE"))
    assert warming is not None
    assert warming[0] == ["the server refused: UNAVAILABLE (NO_BUNDLE): no bundle"]


def test_errors_of_libraries_get_a_way_out() -> None:
    busy = explain(OSError(errno.EADDRINUSE, "Address already in use"))
    assert busy is not None
    assert busy[0][0].startswith("a port is in use: stop the process that holds it")
    assert explain(ModuleNotFoundError(name="faiss")) == (
        ["the module faiss is missing: install it with `pip install 'weir[cpu]'`"],
        1,
    )
    assert explain(ImportError("Install s3fs to access S3")) == (
        ["Install s3fs to access S3 (with .venv/bin/pip or where weir is installed)"],
        1,
    )
    assert explain(ValueError("one\n  two")) == (["one; two (--debug shows where)"], 1)


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError(name="unknown"), ImportError("no"), RuntimeError("x"), KeyError()]
)
def test_other_errors_are_not_explained(error: Exception) -> None:
    assert explain(error) is None
