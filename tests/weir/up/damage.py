"""A small real store, and the ways in which its files get damaged."""

from collections.abc import Callable
from typing import Final

from tests.serving.support import Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import EventClock, Store, WindowLog
from weir.contracts.storage.documents import encode_fields
from weir.serving.monitor.results import Examples, WindowRecall, save

WINDOWS: Final = 3


def whole_store(url: str, windows: int = WINDOWS) -> Store:
    """Windows with their recalls, a bundle that was trained on all but the last, and a clock."""
    store, log = Store(url), WindowLog(Store(url))
    for sequence in range(windows):
        events = [Event(f"user-{n}", f"item-{n % 3}", 1_700_000_000_000 + n) for n in range(10)]
        manifest = write_window(store, sequence, events)
        save(store, recall(sequence, str(manifest.name)))
    assert len(log.committed()) == windows
    write_bundle(store, "00000000-0000000001", Catalogue.random(12, prefix="item"), trained_sequence=windows - 2)
    EventClock(event_origin=1.7e9, wall_origin=1.7e9, event_end=1.7e9 + 100).save(store)
    return store


def recall(sequence: int, window: str, value: float | None = 0.5, examples: int = 10) -> WindowRecall:
    figures = {} if value is None else {20: value}
    return WindowRecall(
        sequence=sequence,
        window=window,
        measured_at=0.0,
        bundle_versions=(),
        examples=Examples(sampled=examples, model=examples, served=examples, popularity=examples),
        index=figures,
        model=figures,
        served=figures,
        popularity=figures,
    )


def bad_byte(pattern: str) -> Callable[[Store], str]:
    """Put a byte that is no UTF-8 into the last file of a pattern, and return the file's name."""

    def damage(store: Store) -> str:
        name = store.glob(pattern)[-1]
        data = store.read(name)
        store.write(name, data[:10] + b"\xff" + data[11:])
        return name

    return damage


def cut(pattern: str) -> Callable[[Store], str]:
    """Leave half of the last file of a pattern."""

    def damage(store: Store) -> str:
        name = store.glob(pattern)[-1]
        data = store.read(name)
        store.write(name, data[: len(data) // 2])
        return name

    return damage


def named_nothing(store: Store) -> str:
    """Have CURRENT name a bundle that is not there."""
    store.write("bundles/CURRENT", encode_fields(b'{\n "version": "00000000-0000000009"\n}'))
    return "bundles/CURRENT"


COMMITS: Final = "commits/0*.json"
DAMAGES: Final[dict[str, Callable[[Store], str]]] = {
    "CURRENT, a byte": bad_byte("bundles/CURRENT"),
    "CURRENT, no bundle": named_nothing,
    "clock, a byte": bad_byte("CLOCK.json"),
    "clock, cut": cut("CLOCK.json"),
    "commit, a byte": bad_byte(COMMITS),
    "commit, cut": cut(COMMITS),
    "bundle's manifest, a byte": bad_byte("bundles/*/MANIFEST.json"),
    "bundle's manifest, cut": cut("bundles/*/MANIFEST.json"),
    "recall result, a byte": bad_byte("monitor/*/*.json"),
    "recall result, cut": cut("monitor/*/*.json"),
}
