"""Figures of age against sums by hand, and their report."""

from pathlib import Path

import numpy as np
import pytest

from tests.serving.support import write_window
from weir import age as facts
from weir.age import AgeFacts, AgePoint, Longer, ServedAge, age_facts
from weir.age_report import write_report
from weir.contracts import Store, UserKeys
from weir.serving.monitor.aged import Judged, Sampling
from weir.serving.monitor.results import AgeHits, WindowRecall, save

BOTH = {1: [1, 1, 0, 1], 2: [1, 0, 0, 1], 3: [0, 0, 1, 0]}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Store:
    """Two windows; the second has no bundle of age 3."""
    store = Store(str(tmp_path))
    windows = [write_window(store, number, []) for number in range(2)]
    users = UserKeys(np.array([1, 1, 2, 3]))
    found = [Judged(window, users) for window in windows]
    for one, ages in zip(found, ((1, 2, 3), (1, 2)), strict=True):
        for age in ages:
            one.hits["both", age] = np.array(BOTH[age], bool)
    found[0].hits["history", 0], found[0].hits["history", 1] = np.ones(4, bool), np.zeros(4, bool)
    monkeypatch.setattr(facts, "judged", lambda *_: found)
    return store


def test_each_age_is_compared_on_the_events_that_it_answered(store: Store) -> None:
    points = {(one.aged, one.windows): one for one in age_facts(store, Sampling(ages=5)).points}
    assert set(points) == {("both", 1), ("both", 2), ("both", 3), ("history", 1)}
    two, three, history = points["both", 2], points["both", 3], points["history", 1]
    assert (two.cases, two.recall, two.freshest) == (8, 0.5, 0.75)
    assert (three.cases, three.recall, three.freshest) == (4, 0.25, 0.75)
    assert three.low <= three.difference == -0.5 <= three.high
    assert (history.recall, history.freshest, history.low, history.high) == (0.0, 1.0, -1.0, -1.0)


def test_a_longer_window_is_the_mean_over_the_ages_that_its_events_would_have_met(store: Store) -> None:
    longer = {one.times: one for one in age_facts(store, Sampling(ages=5)).longer}
    assert set(longer) == {2, 3}
    assert (longer[2].cases, longer[2].difference) == (8, (0.75 + 0.5) / 2 - 0.75)
    assert (longer[3].cases, longer[3].difference) == (4, pytest.approx((0.75 + 0.5 + 0.25) / 3 - 0.75))


def test_what_was_served_is_added_up_over_windows(store: Store) -> None:
    one = AgeHits(of="bundle", up_to=60, cases=10, hits={20: 4, 5: 1})
    older = AgeHits(of="history", up_to=None, cases=2, hits={20: 1})
    for number, ages in enumerate(((one, older), (one,))):
        save(store, result(number, ages))
    served = age_facts(store, Sampling()).served
    assert [(each.of, each.up_to, each.cases, each.recall) for each in served] == [
        ("bundle", 60, 20, 0.4),
        ("history", None, 2, 0.5),
    ]
    # Wilson (1927) for 8 of 20, from a table.
    assert (served[0].low, served[0].high) == pytest.approx((0.2188, 0.6134), abs=1e-4)


def result(number: int, ages: tuple[AgeHits, ...]) -> WindowRecall:
    recalls: dict[str, dict[int, float]] = {"index": {}, "model": {}, "served": {}, "popularity": {}}
    facts = {"sequence": number, "window": f"w{number}/0000", "measured_at": 0, "bundle_versions": (), "examples": {}}
    return WindowRecall.model_validate({**facts, **recalls, "ages": ages})


def test_one_user_has_no_interval(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Judged(write_window(store, 2, []), UserKeys(np.array([1])))
    alone.hits["both", 1] = alone.hits["both", 2] = np.ones(1, bool)
    monkeypatch.setattr(facts, "judged", lambda *_: [alone])
    found = age_facts(store, Sampling())
    assert (found.points, found.longer, found.window_seconds) == ((), (), 3600)


def test_an_empty_store_has_none_of_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "judged", lambda *_: [])
    nothing = AgeFacts(k=20, window_seconds=None, windows=0, points=(), longer=(), served=())
    assert age_facts(store, Sampling()) == nothing


POINT = AgePoint(aged="bundle", windows=2, cases=1234, recall=0.25, freshest=0.5, low=-0.3, high=-0.2)
FACTS = AgeFacts(
    k=20,
    window_seconds=43_200,
    windows=3,
    points=(POINT, POINT.model_copy(update={"aged": "both", "windows": 3})),
    longer=(Longer(times=3, cases=7, difference=-0.125, low=-0.2, high=-0.1),),
    served=(ServedAge(of="history", up_to=None, cases=9, recall=0.75, low=0.5, high=0.9),),
)


def test_the_page_has_every_figure_and_needs_nothing_else(tmp_path: Path) -> None:
    text = write_report(tmp_path, FACTS).read_text()
    for figure in ("1,234", "-0.2500", "-0.3000 to -0.2000", "1 d", "1.5 d", "-0.1250", "0.7500", "older"):
        assert figure in text
    assert "http" not in text.replace("http-equiv", "")
    assert (tmp_path / "age.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert AgeFacts.model_validate_json((tmp_path / "age.json").read_text()) == FACTS


def test_without_kept_bundles_there_is_what_was_served(tmp_path: Path) -> None:
    text = write_report(tmp_path, FACTS.model_copy(update={"points": (), "longer": ()})).read_text()
    assert "As served" in text
    assert "<img" not in text
