from pathlib import Path

import pytest

from weir.contracts import CorruptArtefactError, Store
from weir.contracts.places import MonitorPlace


def test_a_place_is_what_was_stored_last(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert MonitorPlace.read(store) is None
    for place in (MonitorPlace(measured=3), MonitorPlace(measured=4, reported=2, counted=1)):
        place.write(store)
        assert MonitorPlace.read(store) == place
    store.write("monitor/PLACE.json", b"{}")
    with pytest.raises(CorruptArtefactError, match=r"monitor/PLACE\.json"):
        MonitorPlace.read(store)
