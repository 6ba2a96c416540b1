import numpy as np
import pytest

from weir.serving.processes.arrays import MappedArrays, SharedArrays
from weir.serving.processes.channel import Channel, Message, close_all


def test_what_one_end_says_the_other_hears_in_order() -> None:
    one, other = Channel.pair()
    for message in (Message("serve", "v1"), Message("listen"), Message("drop", "v\u00e42")):
        one.send(message)
    assert [other.receive(1) for _ in range(3)] == [
        Message("serve", "v1"),
        Message("listen"),
        Message("drop", "v\u00e42"),
    ]
    other.send(Message("serving"))
    assert one.receive(1) == Message("serving")


def test_files_travel_with_a_message() -> None:
    one, other = Channel.pair()
    thing = [np.arange(20_000), np.full((3, 30_000), 2.5, np.float32), "small"]
    one.send(Message("open", "v1", SharedArrays().package(thing)))
    message = other.receive(1)
    assert message is not None
    assert message.package is not None
    large, matrix, small = MappedArrays().open(message.package)
    close_all([message.package.pickle, *message.package.files])
    np.testing.assert_array_equal(large, thing[0])
    np.testing.assert_array_equal(matrix, thing[1])
    assert small == "small"


def test_silence_and_an_end_are_told_apart() -> None:
    one, other = Channel.pair()
    with pytest.raises(TimeoutError):
        one.receive(0.01)
    other.close()
    assert one.receive(1) is None
    with pytest.raises(OSError, match="Broken pipe"):
        one.send(Message("serve", "v1"))
