from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.offline.logs import circles, small
from weir.trainer.offline.compare import Plan, compare, missing_runs
from weir.trainer.offline.evaluator import Rules
from weir.trainer.offline.fit import Budget, Step, StepReport
from weir.trainer.offline.results import RunResult, result_name
from weir.trainer.offline.rows import choose_rows
from weir.trainer.offline.splits import temporal
from weir.trainer.ranking import NAMES

ROWS = choose_rows("uniform, none; BCE")
SEEDS = (0, 1)
RUNS = [(name, seed) for seed in SEEDS for name in ROWS]
STEPS = 4


class KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def plan() -> Plan:
    log = circles()
    return Plan(log, temporal(log), small(), Budget(STEPS, 2), Rules("interaction", (1, 5)), test_cases=20)


def told(seen: list[tuple[str, int, int]], *, kill_at: int | None = None) -> Callable[[str, int], StepReport]:
    """Note every step of every run; raise at the step that is `kill_at` in all."""

    def begin(name: str, seed: int) -> StepReport:
        def report(step: Step) -> None:
            seen.append((name, seed, step.number))
            if len(seen) == kill_at:
                raise KilledError

        return report

    return begin


def results(folder: Path) -> dict[str, Any]:
    """Return what every run left, without how long it took."""
    found = {}
    for name, seed in RUNS:
        path = folder / result_name(name, seed)
        plain = RunResult.model_validate_json(path.read_bytes()).model_dump(
            exclude={"train_seconds", "evaluate_seconds"}
        )
        for point in plain["curve"]:
            del point["seconds"]
        found[path.name] = repr(plain)  # a NaN does not equal itself
    return found


@pytest.fixture(scope="module")
def whole(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    seen: list[tuple[str, int, int]] = []
    compare(plan, ROWS, SEEDS, folder, told(seen))
    assert seen == [(name, seed, step) for name, seed in RUNS for step in range(1, STEPS + 1)]
    return folder


@pytest.mark.parametrize("kill_at", [1, STEPS, 2 * STEPS + 3, 4 * STEPS])
def test_a_killed_comparison_goes_on_where_it_stood(plan: Plan, whole: Path, tmp_path: Path, kill_at: int) -> None:
    finished = (kill_at - 1) // STEPS
    with pytest.raises(KilledError):
        compare(plan, ROWS, SEEDS, tmp_path, told([], kill_at=kill_at))
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(kept) == {result_name(*run) for run in RUNS[:finished]}
    assert missing_runs(tuple(ROWS), SEEDS, tmp_path) == RUNS[finished:]
    seen: list[tuple[str, int, int]] = []
    compare(plan, ROWS, SEEDS, tmp_path, told(seen))
    assert list(dict.fromkeys((name, seed) for name, seed, _ in seen)) == RUNS[finished:]
    assert {name: (tmp_path / name).read_bytes() for name in kept} == kept
    assert results(tmp_path) == results(whole)


def test_a_finished_comparison_runs_nothing(plan: Plan, whole: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    compare(plan, ROWS, SEEDS, whole, told(seen))
    assert seen == []


def test_seeds_and_rows_differ_and_each_is_told_as_asked(whole: Path) -> None:
    found = [RunResult.model_validate_json((whole / result_name(*run)).read_bytes()) for run in RUNS]
    assert [(result.row, result.seed) for result in found] == RUNS
    assert len({result.curve[0].loss for result in found}) == len(RUNS)
    for result in found:
        assert (result.steps, [point.step for point in result.curve]) == (STEPS, [2, 4])
        assert result.examples > 0
        assert set(result.metrics) == {f"{name}@{k}" for name in NAMES for k in (1, 5)}
