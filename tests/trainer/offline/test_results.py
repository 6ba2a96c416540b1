""""""

import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from tests.trainer.offline.logs import circles, everything, log_of, small
from tests.trainer.ranking.ranked import lists, ranked_at_random
from weir.trainer.offline.compare import FAMILIES, Plan, choose_rows, compare, missing_runs
from weir.trainer.offline.compare import ROWS as ALL_ROWS
from weir.trainer.offline.evaluator import Rules
from weir.trainer.offline.examples import training_batches
from weir.trainer.offline.fit import Budget, Step, StepReport
from weir.trainer.offline.model import OfflineModel
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
from weir.trainer.offline.splits import temporal
from weir.trainer.offline.statistics import _resampled, interval, popularity_deciles, popularity_strata
from weir.trainer.ranking import NAMES, Cases, Lists, Ranked, recall
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.step import train_step


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    held, cases_only = 0, 0
    for _ in range(300):
        sizes = draw.integers(1, 12, 80)
        users = np.repeat(np.arange(80), sizes)
        # A user's cases share a taste, whose mean is 0.5: they are far from independent.
        values = draw.beta(1, 1, 80)[users] + 0.1 * draw.standard_normal(len(users))
        low, high = interval(values, users, resamples=400, generator=draw)
        held += low <= 0.5 <= high
        low, high = interval(values, np.arange(len(users)), resamples=400, generator=draw)
        cases_only += low <= 0.5 <= high
    assert 0.9 <= held / 300 <= 0.99
    assert cases_only / 300 < 0.75


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_with_a_case_per_user_it_is_the_percentile_bootstrap_of_scipy(level: float) -> None:
    draw = np.random.default_rng(1)
    values = draw.exponential(size=150)
    found = interval(values, draw.permutation(150), level, 20_000, generator=draw)
    oracle = stats.bootstrap(
        (values,), np.mean, confidence_level=level, n_resamples=20_000, method="percentile", rng=draw, batch=1000
    ).confidence_interval
    assert found == pytest.approx((oracle.low, oracle.high), abs=0.04 * (oracle.high - oracle.low))


def test_a_mean_over_cases_is_resampled_not_one_over_users() -> None:
    users = np.array([0] * 9 + [1])
    means = _resampled(np.array([[9.0, 9], [0.0, 1]]), 4000, np.random.default_rng(0))
    # Two users drawn from two: both the first, both the second, or one of each.
    assert set(np.round(means, 6).tolist()) == {0.0, 0.9, 1.0}
    assert (means == 0.9).mean() == pytest.approx(0.5, abs=0.05)
    assert interval(np.array([1.0] * 9 + [0]), users, generator=np.random.default_rng(0)) == (0, 1)


def test_the_same_generator_gives_the_same_interval_in_any_order_of_cases() -> None:
    draw = np.random.default_rng(2)
    values, users, order = draw.integers(0, 2, 200).astype(float), draw.integers(30, size=200), draw.permutation(200)
    one = interval(values, users, generator=np.random.default_rng(7))
    assert one == pytest.approx(interval(values[order], users[order], generator=np.random.default_rng(7)))


def test_fewer_than_two_users_say_nothing_of_others() -> None:
    assert all(map(math.isnan, interval(np.ones(4), np.zeros(4, np.int64), generator=np.random.default_rng(0))))


def hits_and_misses(items: list[int], ranks: list[int]) -> Ranked:
    cases = Cases(np.arange(len(items)), Lists(np.arange(len(items) + 1), np.array(items)))
    return Ranked(cases, np.array(ranks), np.zeros((len(items), 5), np.int32), np.arange(100))


def test_strata_by_hand() -> None:
    # Of 100 interactions items 2 and 0 make 70, item 1 the next 20, the others 10; item 5 was never seen.
    counts = np.array([30, 20, 40, 6, 4, 0])
    found = popularity_strata(hits_and_misses([2, 0, 1, 3, 5], [1, 6, 3, 2, 6]), counts, (1, 3))
    assert found["head"] == {"share": 0.4, "recall@1": 0.5, "recall@3": 0.5}
    assert found["torso"] == {"share": 0.2, "recall@1": 0, "recall@3": 1}
    assert found["tail"] == {"share": 0.4, "recall@1": 0, "recall@3": 0.5}


def test_a_border_that_falls_between_two_items_parts_them() -> None:
    found = popularity_strata(hits_and_misses([0, 1, 2], [1, 6, 6]), np.array([50, 30, 20]), (1,))
    assert [one["share"] for one in found.values()] == [pytest.approx(1 / 3)] * 3


def test_a_stratum_without_tests_has_no_recall() -> None:
    found = popularity_strata(hits_and_misses([0], [1]), np.array([6, 4]), (1,))
    assert found["tail"]["share"] == 0
    assert math.isnan(found["tail"]["recall@1"])


@given(st.integers(0, 10_000))
def test_with_one_relevant_item_the_groups_add_up_to_the_recall_of_all(seed: int) -> None:
    ranked = ranked_at_random(seed, most=1)
    counts = np.random.default_rng(seed).geometric(0.05, 60)
    for k in (5, 20):
        total = recall(ranked, k).mean()
        strata = [one for one in popularity_strata(ranked, counts, (k,)).values() if one["share"]]
        assert sum(one["share"] * one[f"recall@{k}"] for one in strata) == pytest.approx(total)
        deciles = [one for one in popularity_deciles(ranked, counts, (k,)) if one["cases"]]
        assert sum(one["cases"] * one[f"recall@{k}"] for one in deciles) / 40 == pytest.approx(total)


@given(st.integers(0, 10_000))
def test_with_many_a_case_is_asked_for_its_own_of_the_group(seed: int) -> None:
    ranked = ranked_at_random(seed)
    counts = np.arange(60, 0, -1)
    before = np.cumsum(counts) - counts
    head = set(np.flatnonzero(before < counts.sum() / 2).tolist())
    shares = [
        len(wanted & set(top[:20].tolist())) / len(wanted)
        for own, top in zip(lists(ranked.cases), ranked.top, strict=True)
        if (wanted := head & set(own))
    ]
    assert popularity_strata(ranked, counts, (20,))["head"]["recall@20"] == pytest.approx(np.mean(shares))


def test_deciles_hold_about_as_many_tests_each_most_popular_first() -> None:
    counts = np.arange(100)
    items = np.repeat(np.arange(100), 3)
    ranks = np.where(items >= 90, 1, 6)
    found = popularity_deciles(hits_and_misses(items.tolist(), ranks.tolist()), counts, (1,))
    assert [one["cases"] for one in found] == [30] * 10
    assert [one["recall@1"] for one in found] == [1] + [0] * 9


def test_an_item_stays_whole() -> None:
    found = popularity_deciles(hits_and_misses([0] * 50 + [1] * 50, [1] * 100), np.array([9, 1]), (1,))
    assert [one["cases"] for one in found] == [0, 0, 50, 0, 0, 0, 0, 50, 0, 0]


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
    config = ALL_ROWS[name].configure(small(kind), 3)
    model = OfflineModel.fresh(config, LOG, everything(LOG), ALL_ROWS[name].estimator)
    before = model.embeddings.weight.clone()
    for batch in islice(training_batches(config, LOG, everything(LOG)), 3):
        assert math.isfinite(train_step(model, batch, Workers()).loss)
    assert model.embeddings.weight.isfinite().all()
    assert (model.embeddings.weight != before).any()


@pytest.mark.parametrize("name", ALL_ROWS)
def test_a_row_changes_the_loss_and_the_negatives_alone(name: str) -> None:
    base = small("matrix_factorisation", tower={"dropout": 0.3}, batch_size=24)
    config = ALL_ROWS[name].configure(base, 7)
    assert config.seed == 7
    left = {"loss", "negatives", "seed"}
    assert config.model_dump(exclude=left) == base.model_dump(exclude=left)
    assert TrainerConfig.model_validate(config.model_dump()) == config


def test_no_two_rows_are_the_same_method_or_share_a_file() -> None:
    methods = [
        (ALL_ROWS[name].configure(small("matrix_factorisation"), 0).model_dump_json(), ALL_ROWS[name].estimator)
        for name in ALL_ROWS
    ]
    assert len(set(methods)) == len(methods)
    assert len({slug(name) for name in ALL_ROWS}) == len(ALL_ROWS) == sum(map(len, FAMILIES.values()))


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["all", *FAMILIES, *ALL_ROWS]), min_size=1, max_size=5))
def test_rows_are_chosen_by_family_and_by_name_each_once(wanted: list[str]) -> None:
    chosen = choose_rows(" ; ".join(wanted))
    parts = [ALL_ROWS if name == "all" else FAMILIES.get(name) or {name: ALL_ROWS[name]} for name in wanted]
    assert list(chosen) == list(dict.fromkeys(name for part in parts for name in part))
    assert all(chosen[name] is ALL_ROWS[name] for name in chosen)


@pytest.mark.parametrize("wanted", ["BPRR", "softmax; nothing", "", "BPR, DCL", "bpr"])
def test_an_unknown_row_is_refused_with_what_is_allowed(wanted: str) -> None:
    with pytest.raises(ValueError, match="no such row or family; allowed: all, ") as refused:
        choose_rows(wanted)
    assert repr(wanted.rpartition("; ")[2]) in str(refused.value)
    assert all(name in str(refused.value) for name in [*FAMILIES, *ALL_ROWS])
