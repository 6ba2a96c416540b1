"""Processes that answer are threads here, at the other end of the same sockets."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.serving.support import Catalogue, mean_tower, write_bundle
from weir.contracts import BundleLog, Store
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.processes.arrays import MappedArrays
from weir.serving.processes.channel import Channel, Message, close_all
from weir.serving.processes.crew import Crew, Seat
from weir.serving.processes.version import Models


@dataclass
class Member:
    """Obeys until it is to fail at some message; `served` lists the versions that it has served, in order."""

    crew: Crew
    number: int = 0
    fails_at: str = ""
    served: list[str | None] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    killed: bool = False

    def __post_init__(self) -> None:
        mine, self.channel = Channel.pair()
        self.seat = Seat(self.number, mine, self._kill)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _kill(self) -> None:
        self.killed = True
        self.channel.close()

    def _run(self) -> None:
        arrays, opened = MappedArrays(), None
        self.channel.send(Message("started"))
        while (message := self.channel.receive()) is not None:
            self.heard.append(message.kind)
            if message.kind == self.fails_at:
                break
            if message.package is not None:
                opened = arrays.open(message.package).opened(1).version
                close_all([message.package.pickle, *message.package.files])
                self.channel.send(Message("opened"))
            elif message.kind == "listen":
                self.channel.send(Message("listening"))
            else:
                self.served.append(opened if message.kind == "serve" else None)
                self.channel.send(Message("serving"))
        self.channel.close()

    def end(self) -> None:
        self.seat.channel.close()
        self.thread.join()


@pytest.fixture
def crew() -> Crew:
    return Crew()


@pytest.fixture
def bundles(store: Store) -> Iterator[LoadedBundle]:
    for number in range(3):
        write_bundle(store, f"v{number}", Catalogue.random(seed=number))
    return iter([load_bundle(BundleLog(store), f"v{number}") for number in range(3)])


def test_all_open_a_version_before_any_serves_it(crew: Crew, bundles: Iterator[LoadedBundle]) -> None:
    members = [Member(crew, number) for number in range(3)]
    for member in members:
        crew.join(member.seat)
        assert crew.has(member.seat)
    for bundle in bundles:
        assert crew.share(bundle, Models(mean_tower())).version == bundle.version
    for member in members:
        member.end()
        assert member.served == ["v0", "v1", "v2"]
        assert member.heard == ["listen", *["open", "serve"] * 3]


def test_who_comes_later_serves_what_the_others_do_before_it_takes_calls(
    crew: Crew, bundles: Iterator[LoadedBundle]
) -> None:
    first = Member(crew)
    crew.join(first.seat)
    crew.share(next(bundles), Models(mean_tower()))
    crew.share(next(bundles), Models(mean_tower()))
    late = Member(crew)
    crew.join(late.seat)
    for member in (first, late):
        member.end()
    assert late.heard == ["open", "serve", "listen"]
    assert late.served == ["v1"]


@pytest.mark.parametrize("step", ["open", "serve"])
def test_one_that_ends_midway_holds_up_nobody(crew: Crew, bundles: Iterator[LoadedBundle], step: str) -> None:
    members = [Member(crew, 0), Member(crew, 1, fails_at=step), Member(crew, 2)]
    for member in members:
        crew.join(member.seat)
    crew.share(next(bundles), Models(mean_tower()))
    crew.leave(members[1].seat)
    assert [crew.has(member.seat) for member in members] == [True, False, True]
    crew.share(next(bundles), Models(mean_tower()))
    for member in members:
        member.end()
    assert [member.served for member in members] == [["v0", "v1"], [], ["v0", "v1"]]
    assert members[1].killed


@pytest.mark.parametrize("step", ["open", "serve", "listen"])
def test_one_that_ends_while_it_joins_is_not_counted_on(crew: Crew, bundles: Iterator[LoadedBundle], step: str) -> None:
    crew.share(next(bundles), Models(mean_tower()))
    late = Member(crew, fails_at=step)
    crew.join(late.seat)
    assert not crew.has(late.seat)
    late.end()


def test_a_version_that_cannot_be_shared_leaves_the_one_before(
    crew: Crew, bundles: Iterator[LoadedBundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(crew)
    crew.join(member.seat)
    crew.share(next(bundles), Models(mean_tower()))

    def full(_: object) -> None:
        raise OSError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(crew.arrays, "package", full)
        with pytest.raises(OSError, match="no memory"):
            crew.share(next(bundles), Models(mean_tower()))
    late = Member(crew)
    crew.join(late.seat)
    for one in (member, late):
        one.end()
        assert one.served == ["v0"]


def test_after_a_drop_nothing_is_served_until_the_next_version(crew: Crew, bundles: Iterator[LoadedBundle]) -> None:
    member = Member(crew)
    crew.join(member.seat)
    crew.share(next(bundles), Models(mean_tower()))
    crew.drop()
    late = Member(crew)
    crew.join(late.seat)
    crew.share(next(bundles), Models(mean_tower()))
    for one in (member, late):
        one.end()
    assert member.served == ["v0", None, "v1"]
    assert late.heard == ["listen", "open", "serve"]
