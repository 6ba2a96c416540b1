import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import Pipe

import pytest

from tests.serving.support import Catalogue, mean_tower, write_bundle
from weir.contracts import BundleLog, Store
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.processes.channel import Channel
from weir.serving.processes.crew import Crew, Seat
from weir.serving.processes.link import ParentLink
from weir.serving.processes.member import Member
from weir.serving.processes.version import Models


def running(crew: Crew, until: Callable[[Member], bool]) -> tuple[Member, threading.Thread]:
    """Return a member that obeys its crew until something holds, and has joined."""
    mine, its = Channel.pair()
    member = Member(its, ParentLink(Pipe()[0]))

    def obey() -> None:
        while not until(member):
            member.refresh()

    def answer() -> None:
        member._may_listen.wait()
        member.listens()

    threads = [threading.Thread(target=run, daemon=True) for run in (obey, answer)]
    for thread in threads:
        thread.start()
    crew.join(Seat(0, mine, its.close))
    return member, threads[0]


def test_it_serves_what_its_parent_has_built_and_describes_it_first(store: Store) -> None:
    described: list[tuple[str, str | None, str | None]] = []
    crew = Crew()
    member, thread = running(crew, lambda one: one.bundle is not None and one.bundle.version == "v1")

    def describe(bundle: LoadedBundle, before: LoadedBundle | None) -> None:
        served = member.bundle.version if member.bundle else None
        described.append((bundle.version, before.version if before else None, served))

    member.describe = describe
    for number in range(2):
        write_bundle(store, f"v{number}", made := Catalogue.random(seed=number))
        crew.share(load_bundle(BundleLog(store), f"v{number}"), Models(mean_tower()))
    thread.join()
    assert member.bundle is not None
    assert member.promoted == "v1"
    assert described == [("v0", None, None), ("v1", "v0", "v0")]
    assert member.bundle.ids[[0, 5]].tolist() == [made.ids[0], made.ids[5]]


def test_where_it_cannot_open_a_version_it_ends_and_the_others_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: signals.append(number))
    crew = Crew()
    member, thread = running(crew, lambda _: bool(signals))
    write_bundle(store, "v0", Catalogue.random())
    crew.share(load_bundle(BundleLog(store), "v0"), Models(b"no model"))
    thread.join()
    assert signals == [signal.SIGTERM]
    assert member.bundle is None
