import io

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from weir.serving.monitor.results import Freshness
from weir.up.summary import DemoSummary, Recalls, _pooled, print_summary, requests_by_code

GOOD = DemoSummary(
    rows=202_047,
    events=200_000,
    dead=100,
    duplicates=1947,
    late=1016,
    windows=63,
    bundles=63,
    recalls=Recalls(
        k=20, cases=1000, index=1.0, model=0.785, served=0.4, popularity=0.174, trainer=0.7, trainer_popularity=0.1
    ),
    servable_seconds=tuple(float(second) for second in range(21)),
    click_seconds=2.7,
    requests={"OK": 1333},
    restarts={},
    peak_memory_bytes=3 << 30,
    first_answer_seconds=26.7,
    seconds=136.0,
)


def test_a_good_run_has_no_failures() -> None:
    assert GOOD.failures == []


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({"requests": {"OK": 5, "INTERNAL": 2}}, "2 requests failed with INTERNAL"),
        ({"requests": {}}, "no request was answered"),
        ({"click_seconds": None}, "the answer did not change after the click"),
        (
            {"recalls": GOOD.recalls.model_copy(update={"model": 0.1})},
            "the model's recall 0.100 is not above",
        ),
        ({"recalls": GOOD.recalls.model_copy(update={"model": None})}, "no recall was measured through the server"),
    ],
)
def test_what_went_wrong_is_told(change: dict[str, object], failure: str) -> None:
    failures = GOOD.model_copy(update=change).failures
    assert len(failures) == 1
    assert failures[0].startswith(failure)


def test_a_catalogue_that_fits_into_every_answer_is_no_failure() -> None:
    both = GOOD.recalls.model_copy(update={"model": 1.0, "popularity": 1.0})
    assert GOOD.model_copy(update={"recalls": both}).failures == []
    equal = both.model_copy(update={"model": 0.9, "popularity": 0.9})
    assert GOOD.model_copy(update={"recalls": equal}).failures == [
        "the model's recall 0.900 is not above popularity's 0.900"
    ]


def test_a_small_log_is_too_small_to_judge_and_no_failure() -> None:
    recalls = GOOD.recalls.model_copy(update={"model": None, "popularity": None, "cases": 0})
    small = GOOD.model_copy(update={"events": 3, "click_seconds": None, "recalls": recalls})
    assert small.failures == []
    assert small.model_copy(update={"requests": {}}).failures == ["no request was answered"]
    console = Console(file=io.StringIO(), width=200)
    print_summary(console, small)
    assert "too small to judge: 3 events, 1,000 are enough" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_interval_is_wilsons() -> None:
    recalls = GOOD.recalls.model_copy(update={"model": 0.1, "cases": 50})
    assert recalls.interval == pytest.approx((0.0435, 0.2136), abs=1e-4)
    assert recalls.model_copy(update={"model": None}).interval is None


@pytest.mark.parametrize("swapped", [0, 3, 5])
def test_only_retrieve_calls_are_requests(swapped: int) -> None:
    """A server without a bundle refuses GetInfo; nobody has asked for items then. A series may be there at 0.

    Calls for a bundle that has been replaced are those of the monitor, which compares variants.
    """
    registry = CollectorRegistry()
    handled = Counter("grpc_server_handled", "Ended.", ["grpc_method", "grpc_code"], registry=registry)
    counts = [
        ("Retrieve", "OK", 7),
        ("Retrieve", "INTERNAL", 2),
        ("Retrieve", "ABORTED", 0),
        ("GetInfo", "UNAVAILABLE", 9),
        ("Retrieve", "FailedPrecondition", 5),
    ]
    for method, code, count in counts:
        handled.labels(method, code).inc(count)
    refused = Counter("weir_requests_refused", "Refused.", ["reason"], registry=registry)
    refused.labels("NO_CATALOGUE").inc(2)
    refused.labels("BUNDLE_VERSION_NOT_LOADED").inc(swapped)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [(s.name, dict(s.labels), s.value) for family in families for s in family.samples]
    failed = {"FailedPrecondition": 5 - swapped} if swapped < 5 else {}
    assert requests_by_code(samples) == {"OK": 7, "INTERNAL": 2} | failed


def test_the_table_shows_every_figure() -> None:
    console = Console(file=io.StringIO(), width=200)
    print_summary(console, GOOD)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in (
        "200,000 events, 100 dead, 1,947 duplicates",
        "0.785 (95 %: 0.758 to 0.809) against 0.174 by popularity (4.5 times)",
    ):
        assert part in text
    for part in (
        "p50 10.0 s, p95 19.0 s, at most 20.0 s",
        "2.7 s",
        "1,333 answered, 0 failed",
        "3.00 GiB",
        "26.7 s",
        "136 s",
    ):
        assert part in text


def test_seconds_are_those_of_events_not_of_windows() -> None:
    many, few = np.linspace(4.0, 6.0, 21).tolist(), np.linspace(10.0, 12.0, 21).tolist()
    windows = [fresh(many, 980), fresh(few, 20)]
    found = _pooled(windows)
    every = np.repeat([*many, *few], [980] * 21 + [20] * 21)
    assert found == tuple(np.quantile(every, np.linspace(0, 1, 21), method="inverted_cdf").tolist())
    assert found[19] <= 6.0 < found[20]
    assert _pooled([]) == _pooled([fresh([], 0)]) == ()


def fresh(quantiles: list[float], events: int) -> Freshness:
    return Freshness(
        bundle_version="v", servable_at=0.0, seconds_min=0.0, seconds_median=0.0, seconds_max=0.0,
        quantiles=tuple(quantiles), events=events,
    )  # fmt: skip


def test_the_histogram_has_its_highest_bar_where_most_events_are() -> None:
    console = Console(file=io.StringIO(), width=200)
    seconds = (1.0, *(8.5 for _ in range(18)), 9.0, 16.0)
    print_summary(console, GOOD.model_copy(update={"servable_seconds": seconds}))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    bars = text.partition("   0 s ")[2].partition(" 16 s")[0]
    assert bars.index("█") == 4
    assert bars.count("▁") == 3


def test_without_a_servable_window_there_is_no_histogram() -> None:
    console = Console(file=io.StringIO(), width=200)
    print_summary(console, GOOD.model_copy(update={"servable_seconds": ()}))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    line = next(line for line in text.splitlines() if "event to servable" in line)
    assert line.split() == ["event", "to", "servable", "-"]
