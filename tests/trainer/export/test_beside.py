"""Threads beside the stream: what ends them, wherever they are."""

import time
from contextlib import suppress
from threading import Event

import faiss
import numpy as np
import pytest

from weir.trainer.export.beside import beside, none_left


def vectors() -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    return np.random.default_rng(0).standard_normal((100_000, 32), dtype=np.float32)


@pytest.mark.parametrize("name", ["faiss", "faiss again and again", "python"])
def test_none_is_left(name: str) -> None:
    has_started, is_done = Event(), Event()

    def work() -> None:
        given = vectors()
        has_started.set()
        if name == "faiss":
            with suppress(RuntimeError):
                faiss.index_factory(32, "IVF4096,Flat", faiss.METRIC_INNER_PRODUCT).train(given)
        while name == "python":
            time.sleep(0.001)
        while name == "faiss again and again":
            with suppress(RuntimeError):
                faiss.IndexFlatIP(32).search(given[:1], 1)
        is_done.set()

    with none_left():
        thread = beside("work", work)
        assert has_started.wait(30)
        time.sleep(0.2)  # it is at it
    assert not thread.is_alive()
    assert not is_done.is_set()


def test_faiss_computes_again_afterwards() -> None:
    has_started = Event()

    def work() -> None:
        has_started.set()
        with suppress(RuntimeError):
            faiss.index_factory(32, "IVF4096,Flat", faiss.METRIC_INNER_PRODUCT).train(vectors())

    with none_left():
        beside("work", work)
        assert has_started.wait(30)
        time.sleep(0.2)
    index = faiss.index_factory(32, "IVF16,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors()[:1000])
    assert index.is_trained


def test_a_thread_that_is_awaited_ends_by_itself() -> None:
    let_go, is_done = Event(), Event()

    def work() -> None:
        assert let_go.wait(30)
        is_done.set()

    with none_left():
        thread = beside("work", work, is_awaited=True)
    assert thread.is_alive()
    let_go.set()
    thread.join(30)
    assert is_done.is_set()


def test_an_error_inside_stays_what_it_is() -> None:
    def failing() -> None:
        with none_left():
            beside("work", vectors)
            raise ValueError("what inside has raised")

    with pytest.raises(ValueError, match="what inside has raised"):
        failing()
