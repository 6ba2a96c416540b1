import pytest

from tests.serving.support import write_window
from weir.contracts import CorruptArtefactError, Store
from weir.serving.monitor.results import Examples, WindowRecall, load, recorded, save


def result(sequence: int, window: str) -> WindowRecall:
    return WindowRecall(
        sequence=sequence,
        window=window,
        measured_at=1.5,
        bundle_versions=("v1",),
        examples=Examples(sampled=3, model=2, served=3, popularity=3, skipped={"swapped": 1}),
        index={10: 1.0},
        model={10: 0.5},
        served={10: 0.25},
        popularity={},
    )


def test_results_come_back_in_commit_order(store: Store) -> None:
    manifests = [write_window(store, sequence, [], start_ms=start) for sequence, start in ((0, 9 * 10**9), (1, 10**9))]
    results = [result(m.sequence, str(m.name)) for m in manifests]
    assert recorded(store) == []
    assert load(store, manifests[0]) is None
    for one in results:
        save(store, one)
    assert recorded(store) == results
    assert load(store, manifests[1]) == results[1]
    assert store.glob("monitor/*/*.json") == sorted(f"monitor/{m.name}.json" for m in manifests)


def test_a_damaged_result_is_left_out_and_named(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    manifests = [write_window(store, sequence, []) for sequence in range(2)]
    for manifest in manifests:
        save(store, result(manifest.sequence, str(manifest.name)))
    name = f"monitor/{manifests[0].name}.json"
    for data in (b"", b"\xff", b"[]", store.read(name)[:-9]):
        caplog.clear()
        store.write(name, data)
        assert [one.sequence for one in recorded(store)] == [1]
        assert name in caplog.text
        with pytest.raises(CorruptArtefactError, match=name):
            load(store, manifests[0])
