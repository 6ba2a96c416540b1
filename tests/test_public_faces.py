"""What a user may import is in `__all__` of its package, and an import loads no more than it needs."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAZY = ["weir.pipelines", "weir.trainer", "weir.trainer.export", "weir.serving", "weir.serving.monitor", "weir"]
FACES = ["weir.contracts", "weir.readers", "weir.sketches", *LAZY]
HEAVY = {"apache_beam", "faiss", "grpc", "numpy", "onnx", "onnxruntime", "pyarrow", "pydantic", "torch"}


def _loaded(statement: str) -> set[str]:
    """Return the heavy libraries that a fresh interpreter has loaded after `statement`."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return HEAVY & set(run.stdout.split())


@pytest.mark.parametrize("name", FACES)
def test_every_name_can_be_imported(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__all__
    for public in package.__all__:
        assert getattr(package, public) is not None
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("name", LAZY)
def test_types_and_names_agree(name: str) -> None:
    stub = ast.parse((ROOT / name.replace(".", "/") / "__init__.pyi").read_text())
    [declared] = [node.value for node in stub.body if isinstance(node, ast.Assign)]
    assert ast.literal_eval(declared) == importlib.import_module(name).__all__


@pytest.mark.parametrize("name", LAZY)
def test_a_package_alone_loads_no_library(name: str) -> None:
    assert _loaded(f"import {name}") == set()


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("from weir.trainer import TrainerConfig", {"torch", "onnx"}),
        ("from weir.trainer.export.tracing import tracing_of", {"torch", "onnx"}),
        ("from weir.trainer import read_interactions", {"apache_beam", "grpc"}),
        ("from weir.pipelines import PipelineConfig", {"apache_beam"}),
        ("from weir.serving import ServingConfig", {"grpc", "faiss", "onnxruntime"}),
        ("from weir.serving import RetrievalClient", {"faiss", "onnxruntime", "torch"}),
        ("import weir.client", {"apache_beam", "faiss", "onnx", "onnxruntime", "torch"}),
        ("from weir.serving.monitor import MonitorConfig", {"grpc"}),
        ("from weir import load_settings", {"apache_beam", "faiss", "grpc", "torch"}),
        ("from weir import contracts, sketches", {"apache_beam", "faiss", "grpc", "torch"}),
    ],
)
def test_a_name_loads_what_it_needs(statement: str, absent: set[str]) -> None:
    assert _loaded(statement) & absent == set()


@pytest.mark.parametrize(
    ("name", "file"),
    [("weir.trainer.train", "weir.trainer.train"), ("weir.pipelines.ingest", "weir.pipelines.batch.ingest")],
)
def test_a_function_wins_over_the_module_of_its_name(name: str, file: str) -> None:
    package, _, function = name.rpartition(".")
    module = importlib.import_module(file)
    assert getattr(importlib.import_module(package), function) is getattr(module, function)
