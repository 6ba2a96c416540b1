import numpy as np
from apache_beam.runners.worker.statecache import get_deep_size
from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.progress import Progress

CLAIMS = st.lists(st.tuples(st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)), max_size=8)


def test_beam_takes_no_longer_to_measure_many_claims() -> None:
    """Its cache asks for the size of what it holds, object by object."""
    few, many = Progress(contested={1: 2}), Progress(contested=dict.fromkeys(range(10_000), 2))
    assert get_deep_size(few) == get_deep_size(many)


@given(st.lists(CLAIMS, max_size=5))
def test_of_several_ids_that_claim_a_key_the_lowest_check_has_it(parts: list[list[tuple[int, int]]]) -> None:
    arrays = (np.array(part, np.int64).reshape(-1, 2) for part in parts)
    found = Progress().add(Progress(claims=[claims]) for claims in arrays).settle()
    checks: dict[int, set[int]] = {}
    for key, check in (pair for part in parts for pair in part):
        checks.setdefault(key, set()).add(check)
    assert found.contested == {key: min(known) for key, known in checks.items() if len(known) > 1}
    assert not found.claims
