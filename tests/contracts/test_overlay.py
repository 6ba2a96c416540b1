import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.overlay import Overlay

keys = st.lists(st.integers(-5, 20), unique=True, max_size=8)


@given(st.lists(st.tuples(keys, keys), max_size=5))
def test_it_holds_what_a_dictionary_holds_and_no_version_changes(changes: list[tuple[list[int], list[int]]]) -> None:
    overlay, wanted = Overlay.empty(np.empty((0, 2))), dict[int, tuple[float, float]]()
    versions = [(overlay, wanted)]
    for number, (came, gone) in enumerate(changes):
        values = np.array([[key, number] for key in came], np.float64).reshape(-1, 2)
        overlay = overlay.without(np.array(gone, np.int64)).replaced(np.array(came, np.int64), values)
        wanted = {key: value for key, value in wanted.items() if key not in gone}
        wanted |= {key: (float(key), float(number)) for key in came}
        versions.append((overlay, wanted))
    for overlay, wanted in versions:
        assert overlay.keys.tolist() == sorted(wanted)
        assert [tuple(value) for value in overlay.values.tolist()] == [wanted[key] for key in sorted(wanted)]
        asked = np.arange(-6, 22).reshape(4, 7)
        places, here = overlay.find(asked)
        assert here.tolist() == [[key in wanted for key in some] for some in asked.tolist()]
        assert overlay.keys[places[here]].tolist() == asked[here].tolist()
