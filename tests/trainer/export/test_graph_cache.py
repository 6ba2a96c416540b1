import subprocess
import sys
from pathlib import Path

import pytest

from weir.contracts import Store
from weir.trainer.export import graph_cache
from weir.trainer.export import onnx_models as traced
from weir.trainer.settings.trainer import TowerConfig

CONFIG = TowerConfig(kind="mean_pooling", dimension=6, history_length=4)
GRAPH = b"a graph"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph_cache._made_by.cache_clear()
    return tmp_path / "weir" / "towers"


def test_what_is_kept_is_read_and_of_these_settings_only() -> None:
    assert graph_cache.read_graph(CONFIG) is None
    graph_cache.write_graph(CONFIG, GRAPH)
    assert graph_cache.read_graph(CONFIG) == GRAPH
    assert graph_cache.read_graph(CONFIG.model_copy(update={"layers": 2})) is None


def test_what_is_damaged_is_not_read_and_what_is_kept_after_it_is(folder: Path) -> None:
    graph_cache.write_graph(CONFIG, GRAPH)
    (file,) = folder.iterdir()
    file.write_bytes(GRAPH[:-1])
    assert graph_cache.read_graph(CONFIG) is None
    graph_cache.write_graph(CONFIG, GRAPH)
    assert graph_cache.read_graph(CONFIG) == GRAPH


@pytest.mark.parametrize("changed", ["version", "_SOURCES"])
def test_other_libraries_and_other_sources_have_graphs_of_their_own(
    changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph_cache.write_graph(CONFIG, GRAPH)
    monkeypatch.setattr(graph_cache, changed, {"version": lambda _: "0", "_SOURCES": ("towers/sasrec.py",)}[changed])
    graph_cache._made_by.cache_clear()
    assert graph_cache.read_graph(CONFIG) is None


def test_every_source_that_makes_a_graph_counts() -> None:
    counted = {path.name for one in graph_cache._SOURCES for path in graph_cache._TRAINER.glob(one)}
    assert counted >= {"recency.py", "tower.py", "towers.py", "onnx_models.py"}


def test_where_nothing_can_be_kept_a_tower_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weir").write_text("not a folder")
    graph_cache.write_graph(CONFIG, GRAPH)
    assert graph_cache.read_graph(CONFIG) is None
    monkeypatch.setattr(traced, "_traced", lambda _: GRAPH)
    monkeypatch.setattr(traced, "_GRAPHS", {})
    assert traced.trace_tower(CONFIG) == GRAPH


def test_who_has_no_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    graph_cache.write_graph(CONFIG, GRAPH)
    assert graph_cache.read_graph(CONFIG) is None


def test_with_a_library_of_unknown_version_nothing_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_cache, "_LIBRARIES", ("torch", "no-such-library"))
    graph_cache.write_graph(CONFIG, GRAPH)
    assert graph_cache.read_graph(CONFIG) is None
    assert not folder.exists()


def test_without_a_setting_it_is_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    graph_cache.write_graph(CONFIG, GRAPH)
    assert Store(str(tmp_path / ".cache" / "weir" / "towers")).glob("*.onnx")


def test_another_process_does_not_trace_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes what the tower computes, which every export looks at."""
    monkeypatch.setattr(traced, "_GRAPHS", {})
    own = traced.trace_tower(CONFIG)
    script = f"""if True:
        import sys
        from weir.trainer.settings.towers import TowerConfig
        from weir.trainer.export.onnx_models import tower_to_onnx, trace_tower
        from weir.trainer.towers import build_tower
        config = TowerConfig.model_validate_json({CONFIG.model_dump_json()!r})
        sys.stdout.buffer.write(trace_tower(config))
        tower_to_onnx(build_tower(config, 3), config)
        assert "onnxscript" not in sys.modules"""
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True).stdout == own
