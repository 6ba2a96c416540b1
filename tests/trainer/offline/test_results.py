import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from weir.trainer.offline.results import (
    Comparison,
    ResultsError,
    RunResult,
    load_comparison,
    load_results,
    result_name,
    save_comparison,
    save_result,
    slug,
)


def comparison(**changes: Any) -> Comparison:
    fields: dict[str, Any] = {
        "title": "Losses",
        "data": "ml-1m",
        "split": "leave-one-out",
        "rows": ["In-batch, improved", "BPR"],
        "seeds": [0, 1],
        "cutoffs": [10, 20],
        "headline": "recall@20",
        "configuration": {"BPR": {"negatives": 1, "optimiser": {"rate": 0.01}, "kinds": ["uniform"]}},
        "facts": {"users": 6040, "items": 3416},
        "versions": {"torch": "2.13.0"},
        "command": "weir bench losses",
    }
    return Comparison.model_validate(fields | changes)


def run(row: str = "BPR", seed: int = 0, **changes: Any) -> RunResult:
    fields: dict[str, Any] = {
        "row": row,
        "seed": seed,
        "steps": 900,
        "best_step": 900,
        "examples": 5_760_000,
        "train_seconds": 123.4,
        "evaluate_seconds": 2.1,
        "parameters": 241_000,
        "curve": [{"step": 300, "seconds": 40.1, "loss": 5.1, "metrics": {"recall@20": 0.21}}],
        "metrics": {"recall@20": 0.2, "ndcg@20": 0.1},
        "intervals": {"recall@20": [0.19, 0.21]},
        "strata": {"head": {"share": 0.5, "recall@20": 0.3}},
        "deciles": [{"recall@20": 0.3, "cases": 12}],
    }
    return RunResult.model_validate(fields | changes)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    save_comparison(tmp_path, comparison())
    for row, seed in [("BPR", 1), ("In-batch, improved", 0)]:
        save_result(tmp_path, run(row, seed))
    loaded = load_comparison(tmp_path)
    assert loaded == comparison()
    results = load_results(tmp_path, loaded)
    assert list(results) == [("In-batch, improved", 0), ("BPR", 1)]
    assert results["BPR", 1] == run("BPR", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bpr-seed1.json",
        "comparison.json",
        "in-batch-improved-seed0.json",
    ]


def test_figures_that_are_not_finite_survive(tmp_path: Path) -> None:
    diverged = run(
        curve=[{"step": 1, "seconds": 0.1, "loss": math.inf, "metrics": {}}],
        deciles=[{"recall@20": math.nan, "cases": 0}],
    )
    save_result(tmp_path, diverged)
    loaded = load_results(tmp_path, comparison())["BPR", 0]
    assert loaded.curve[0].loss == math.inf
    assert math.isnan(loaded.deciles[0].metrics["recall@20"])


def test_strata_and_deciles_keep_their_figures_apart_from_their_sizes() -> None:
    result = run()
    assert result.strata["head"].metrics == {"recall@20": 0.3}
    assert result.deciles[0].metrics == {"recall@20": 0.3}
    with pytest.raises(ValidationError, match="valid number"):
        run(deciles=[{"recall@20": "high", "cases": 1}])


@given(st.text(max_size=30), st.integers(0, 9))
def test_file_names_are_safe_whatever_the_row_is_called(row: str, seed: int) -> None:
    try:
        name = result_name(row, seed)
    except ValueError as error:
        assert "rename it" in str(error)  # noqa: PT017  either outcome is right, by the name
        return
    assert name.isascii()
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.+")
    assert not name.startswith("-")
    assert slug(slug(row)) == slug(row)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rows": ["BPR", "bpr!"]}, "'BPR' and 'bpr!' would share the files bpr-seed"),
        ({"rows": ["BPR", "BPR"]}, "would share"),
        ({"rows": ["BPR", "!"]}, "no ASCII letter or digit"),
        ({"seeds": [0, 0]}, "repeat; give each once"),
        ({"headline": "recall@50"}, r"cutoffs \[10, 20\]"),
        ({"headline": "recall"}, "not metric@k"),
        ({"configuration": {"CCL": {}}}, r"\['CCL'\], which are not rows"),
    ],
)
def test_contradictions_are_named(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        comparison(**changes)


def test_a_broken_file_is_named_with_its_fault(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"comparison\.json: not found"):
        load_comparison(tmp_path)
    path = save_result(tmp_path, run(metrics={"ndcg@20": 0.1}))
    with pytest.raises(ResultsError, match=r"bpr-seed0\.json: has no recall@20.*it has ndcg@20"):
        load_results(tmp_path, comparison())
    path.write_bytes(save_result(tmp_path, run(seed=1)).read_bytes())
    with pytest.raises(ResultsError, match="holds row 'BPR', seed 1, but is named for row 'BPR', seed 0"):
        load_results(tmp_path, comparison())
    path.write_text("{")
    with pytest.raises(ResultsError, match=r"bpr-seed0\.json"):
        load_results(tmp_path, comparison())
