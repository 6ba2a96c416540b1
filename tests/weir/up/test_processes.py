from pathlib import Path

import pytest

from weir.up.processes import Replayed, child_specs


def test_children_get_the_file_and_nothing_of_our_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_TRAINER__SEED", "5")
    monkeypatch.setenv("OTHER", "kept")
    specs = child_specs(Path("settings.json"), 3, Replayed(Path("log.jsonl"), 9.0))
    assert [spec.name for spec in specs] == ["replay", "pipeline", "trainer", "server", "monitor"]
    assert [spec.name for spec in specs if not spec.forever] == ["replay"]
    assert [spec.starts_after for spec in specs] == [("trainer", "all ranks have started"), None, None, None, None]
    for spec in specs:
        assert spec.command[-2:] == ("--config", "settings.json")
        assert "WEIR_TRAINER__SEED" not in spec.environment
        assert spec.environment["OTHER"] == "kept"
    assert "3" in specs[2].command
    assert [spec.name for spec in child_specs(Path("s"), 1, None)] == ["pipeline", "trainer", "server", "monitor"]


def test_each_line_that_plays_a_role_has_a_trainer() -> None:
    specs = child_specs(Path("s"), 2, Replayed(Path("log.jsonl"), 9.0), ("new", "main"))
    assert [spec.name for spec in specs] == ["replay", "pipeline", "trainer-new", "trainer", "server", "monitor"]
    assert specs[2].command[-4:-2] == ("--variant", "new")
    assert "--variant" not in specs[3].command
    assert specs[0].starts_after == ("trainer-new", "all ranks have started")
