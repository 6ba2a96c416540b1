""""""

import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.offline.logs import circles, everything, log_of, small
from weir.trainer.offline.compare import FAMILIES, Plan, choose_rows, compare, missing_runs
from weir.trainer.offline.compare import ROWS as ROWS_ROWS
from weir.trainer.offline.evaluator import Rules
from weir.trainer.offline.examples import training_batches
from weir.trainer.offline.fit import Budget, Step, StepReport
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.results import RunResult, result_name, slug
from weir.trainer.offline.splits import temporal
from weir.trainer.ranking import NAMES
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.step import train_step

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


# Fewer items than the 256 negatives that the rows draw.
LOG = log_of([row % 30 for row in range(360)], [row % 50 for row in range(360)])
TOWERS = [
    (name, "sasrec" if family == "softmax" else "matrix_factorisation")
    for family, rows in FAMILIES.items()
    for name in rows
]


@pytest.mark.parametrize(("name", "kind"), [*TOWERS, ("BPR", "lightgcn"), ("full softmax", "lightgcn")])
def test_every_row_learns_with_the_tower_of_its_family(name: str, kind: str) -> None:
    config = ROWS_ROWS[name].configure(small(kind), 3)
    model = OfflineModel.fresh(config, LOG, everything(LOG), ROWS_ROWS[name].estimator)
    before = model.embeddings.weight.clone()
    for batch in islice(training_batches(config, LOG, everything(LOG)), 3):
        assert math.isfinite(train_step(model, batch, Workers()).loss)
    assert model.embeddings.weight.isfinite().all()
    assert (model.embeddings.weight != before).any()


@pytest.mark.parametrize("name", ROWS_ROWS)
def test_a_row_changes_the_loss_and_the_negatives_alone(name: str) -> None:
    base = small("matrix_factorisation", tower={"dropout": 0.3}, batch_size=24)
    config = ROWS_ROWS[name].configure(base, 7)
    assert config.seed == 7
    left = {"loss", "negatives", "seed"}
    assert config.model_dump(exclude=left) == base.model_dump(exclude=left)
    assert TrainerConfig.model_validate(config.model_dump()) == config


def test_no_two_rows_are_the_same_method_or_share_a_file() -> None:
    methods = [
        (ROWS_ROWS[name].configure(small("matrix_factorisation"), 0).model_dump_json(), ROWS_ROWS[name].estimator)
        for name in ROWS_ROWS
    ]
    assert len(set(methods)) == len(methods)
    assert len({slug(name) for name in ROWS_ROWS}) == len(ROWS_ROWS) == sum(map(len, FAMILIES.values()))


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["all", *FAMILIES, *ROWS_ROWS]), min_size=1, max_size=5))
def test_rows_are_chosen_by_family_and_by_name_each_once(wanted: list[str]) -> None:
    chosen = choose_rows(" ; ".join(wanted))
    parts = [ROWS_ROWS if name == "all" else FAMILIES.get(name) or {name: ROWS_ROWS[name]} for name in wanted]
    assert list(chosen) == list(dict.fromkeys(name for part in parts for name in part))
    assert all(chosen[name] is ROWS_ROWS[name] for name in chosen)


@pytest.mark.parametrize("wanted", ["BPRR", "softmax; nothing", "", "BPR, DCL", "bpr"])
def test_an_unknown_row_is_refused_with_what_is_allowed(wanted: str) -> None:
    with pytest.raises(ValueError, match="no such row or family; allowed: all, ") as refused:
        choose_rows(wanted)
    assert repr(wanted.rpartition("; ")[2]) in str(refused.value)
    assert all(name in str(refused.value) for name in [*FAMILIES, *ROWS_ROWS])
