import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.comparison import Comparison
from weir.contracts.confidence import Running
from weir.trainer.config import TrainerConfig
from weir.trainer.export.gate import Evidence, PairedGate

GATE = PairedGate(cutoff=20, tolerance=0.5)


def evidence(cases: int, new: float, old: float) -> Evidence:
    """Hits at random, the two bundles' independent of each other."""
    draw = np.random.default_rng(1)
    return Evidence.of(draw.random(cases) < new, draw.random(cases) < old)


@pytest.mark.parametrize(
    ("new", "old", "promoted"),
    [(0.40, 0.40, True), (0.25, 0.40, True), (0.05, 0.40, False), (0.0, 0.40, False), (0.9, 0.4, True), (0, 0, True)],
)
@pytest.mark.parametrize("cases", [200, 1000])
def test_a_fall_beyond_the_tolerance_is_held_and_rolled_back(
    cases: int, new: float, old: float, promoted: bool
) -> None:
    found = evidence(cases, new, old)
    before, after = GATE.before(None, found), GATE.after(found)
    assert after is not None
    assert before.promoted is after.promoted is promoted
    assert before.sentence.startswith("promoted: " if promoted else "held: ")
    assert after.sentence.startswith("confirmed: " if promoted else "rolled back: ")
    assert f"recall@20 is {(found.both + found.new_only) / cases:.4f}, of the current bundle" in before.sentence
    assert f"on {cases} cases" in before.sentence


def test_few_cases_decide_nothing() -> None:
    few = evidence(199, 0.0, 0.9)
    assert GATE.before(None, few).promoted
    assert GATE.before(None, few).sentence == "promoted: 199 cases, 200 are compared"
    assert GATE.after(few) is None
    assert GATE.after(Evidence()) is None


def test_what_is_not_sound_is_held_whatever_it_hits() -> None:
    verdict = GATE.before("tower.bias contains NaN", evidence(500, 0.9, 0.1))
    assert (verdict.promoted, verdict.sentence) == (False, "held: tower.bias contains NaN")
    assert not GATE.before("tower.bias contains NaN", Evidence()).promoted


def test_the_tolerance_and_the_cutoff_come_from_the_settings() -> None:
    gate = PairedGate.of(TrainerConfig(evaluation_k=(1, 5, 20), gate_tolerance=0.1))
    assert gate == PairedGate(5, 0.1)
    slightly = evidence(1000, 0.2, 0.4)
    assert GATE.before(None, slightly).promoted
    assert not gate.before(None, slightly).promoted


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=200, max_size=400), st.floats(0, 1))
def test_the_bound_is_that_of_the_paired_differences(hits: list[tuple[bool, bool]], tolerance: float) -> None:
    """Against the same mean and standard error, computed case by case."""
    new, old = (np.array(column) for column in zip(*hits, strict=True))
    x = new - (1 - tolerance) * old
    bound = x.mean() + 3 * x.std() / math.sqrt(len(x))
    found = Evidence.of(new, old)
    assert found.cases == len(x)
    if abs(bound) > 1e-9:
        assert PairedGate(20, tolerance).before(None, found).promoted is bool(bound > 0)


@given(st.floats(0.01, 0.9), st.integers(0, 2**32 - 1))
def test_a_bundle_as_good_as_the_other_is_not_held(recall: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    found = Evidence.of(draw.random(200) < recall, draw.random(200) < recall)
    assert GATE.before(None, found).promoted


def test_evidence_is_pooled_by_adding() -> None:
    whole, parts = np.random.default_rng(0).random((2, 300)) < 0.4, (slice(0, 100), slice(100, 300))
    pooled = [Evidence.of(whole[0][part], whole[1][part]) for part in parts]
    assert pooled[0] + pooled[1] == Evidence.of(*whole)


@pytest.mark.parametrize(("difference", "promoted"), [(0.5, True), (-0.5, False), (0.0, None)])
def test_a_challenger_is_promoted_by_the_interval_of_the_difference(difference: float, promoted: bool | None) -> None:
    differences = Running().add(np.full(500, (difference + 1) / 2))
    verdict = GATE.challenged(Comparison(champion="main", challenger="new", differences=differences), "recall")
    if promoted is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict.promoted is promoted
        assert verdict.sentence.startswith("better: " if promoted else "worse: ")
    nothing = Comparison(champion="main", challenger="new", differences=differences)
    assert GATE.challenged(nothing, "clicks") is None
