import threading

from weir.serving.batching.batcher import Wakeup


def test_a_ring_before_the_wait_ends_it_once() -> None:
    bell, rounds = Wakeup(), list[int]()
    bell.ring()
    bell.ring()
    bell.wait()

    def wait_again() -> None:
        bell.wait()
        rounds.append(1)

    waiting = threading.Thread(target=wait_again)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    bell.ring()
    waiting.join(10)
    assert rounds == [1]
    assert not bell.waits
    bell.answer()
