from apache_beam.runners.worker.statecache import get_deep_size

from pipelines.progress import Progress


def test_beam_takes_no_longer_to_measure_many_claims() -> None:
    """Its cache asks for the size of what it holds, object by object."""
    few, many = Progress(claims={1: 2}), Progress(claims=dict.fromkeys(range(10_000), 2))
    assert get_deep_size(few) == get_deep_size(many)
