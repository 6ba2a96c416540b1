from typing import Any

from contracts import SourceSpan, WindowCounts, WindowManifest
from pipelines.blocks import PartitionProgress, Progress
from pipelines.positions import Committed, Run, Seen, seen_partitions
from pipelines.sources import Format, Partition


def manifest(sequence: int, run: int, window: int, sources: dict[str, tuple[int, int, int]], **changes: Any) -> Any:
    spans = {key: SourceSpan(start=a, stop=b, resume=c, size=b, dead=1) for key, (a, b, c) in sources.items()}
    fields = {
        "sequence": sequence,
        "run": run,
        "last_of_run": False,
        "start_ms": window,
        "end_ms": window + 10,
        "pane": 0,
        "min_event_ms": window,
        "max_event_ms": window + 1,
        "committed_at": 0.0,
        "counts": WindowCounts(),
        "sources": spans,
        "history_length": 3,
        "sketch": {},
        "files": (),
    }
    return WindowManifest(**fields | changes)


def test_a_completed_run_resumes_and_a_killed_one_begins_again() -> None:
    first = manifest(0, 0, 0, {"a": (0, 100, 40), "b": (0, 50, 50)}, last_of_run=True)
    killed = manifest(1, 1, 10, {"a": (40, 200, 120)})
    assert seen_partitions([first]) == {"a": Seen(40, 100, 100, 1), "b": Seen(50, 50, 50, 1)}
    seen = seen_partitions([killed, first])
    assert seen == {"a": Seen(40, 200, 200, 1, was_cut=True), "b": Seen(50, 50, 50, 1)}
    assert not seen["a"].is_done
    assert seen["b"].is_done
    assert seen_partitions([first, killed, manifest(2, 2, 20, {"a": (40, 200, 200)}, last_of_run=True)])["a"].is_done


def test_counted_is_the_furthest_stop_of_a_windows_panes() -> None:
    panes = [
        manifest(0, 0, 0, {"a": (0, 100, 40), "b": (0, 9, 9)}),
        manifest(1, 0, 10, {"a": (0, 100, 40)}, last_of_run=True),
        manifest(2, 2, 0, {"a": (40, 150, 150)}, pane=1, last_of_run=True),
    ]
    found = Committed.of(panes, {"a"})
    assert found.counted == {0: {"a": 150}, 10: {"a": 100}}
    assert found.panes == {0: 2, 10: 1}
    assert (found.max_event_ms, found.last_sequence) == (11, 2)


def a_run(**changes: Any) -> Run:
    fields: dict[str, Any] = {
        "committed": Committed(max_event_ms=50),
        "partitions": {"a": Partition("a", "a", Format.JSON_LINES, 1000)},
        "starts": {"a": 100},
        "seen": {"a": Seen(100, 300, 300, 2)},
        "dead_before": {"a": 2},
        "window_ms": 10,
        "lateness_ms": 5,
        "flush": False,
    }
    return Run(**fields | changes)


def test_sources_resume_at_the_lowest_row_of_an_open_window() -> None:
    progress = Progress(70, {"a": PartitionProgress(900, 3, {40: 150, 60: 400, 70: 300})})
    assert a_run().watermark_ms(progress) == 65
    assert a_run().sources(progress) == {"a": SourceSpan(start=100, stop=900, resume=300, size=1000, dead=5)}
    assert a_run(flush=True).sources(progress)["a"].resume == 900
    assert a_run(committed=Committed(max_event_ms=200)).sources(progress)["a"].resume == 900


def test_stop_never_goes_back() -> None:
    assert a_run().sources(Progress(-1, {"a": PartitionProgress(200)}))["a"].stop == 300
