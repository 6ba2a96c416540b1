from pathlib import Path

from benchmarks.trainer_start import in_a_process


def test_a_tower_that_is_kept_costs_less_than_one_that_is_traced(tmp_path: Path) -> None:
    """Much of the compiler is own memory, which does not depend on how busy a machine is."""
    sizes = {name: in_a_process(name, str(tmp_path))[1] for name in ("tower, traced", "tower, kept")}
    assert sizes["tower, kept"] < sizes["tower, traced"] / 2
    assert len(list((tmp_path / "weir" / "towers").iterdir())) == 1
