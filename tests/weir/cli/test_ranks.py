"""What the options of several machines may say, and how a machine knows where it is."""

import os
import socket

import pytest
import typer
from typer.testing import CliRunner

from tests.ports import free_port
from weir.cli.main import app
from weir.cli.ranks import Nodes


def at(host: str, port: int = 29400) -> Nodes:
    return Nodes(1, 2, host, port, None)


def test_nodes_are_a_number_or_a_range() -> None:
    assert Nodes.of(None, None, None) is None
    assert Nodes.of("2", "a:29400", None) == Nodes(2, 2, "a", 29400, None)
    found = Nodes.of("1:4", "[::1]:29400", "b")
    assert found == Nodes(1, 4, "::1", 29400, "b")
    meeting = found.meeting()
    assert (meeting["rdzv_endpoint"], meeting["local_addr"], meeting["min_nodes"]) == ("[::1]:29400", "b", 1)


@pytest.mark.parametrize("count", ["", "0", "3:2", "1:", "x", "1:2:3", "-1"])
def test_other_nodes_are_refused(count: str) -> None:
    with pytest.raises(typer.BadParameter, match="is neither a number nor MIN:MAX, such as 1:4"):
        Nodes.of(count, "a:29400", None)


@pytest.mark.parametrize("place", [None, "a", "a:", ":1"])
def test_nodes_need_a_place_to_meet(place: str | None) -> None:
    with pytest.raises(typer.BadParameter, match="must be host:port of the first machine"):
        Nodes.of("2", place, None)


def test_a_place_to_meet_needs_nodes() -> None:
    done = CliRunner().invoke(app, ["train", "--meet", "a:29400"])
    assert done.exit_code == 2
    assert "has a meaning with --nodes only" in " ".join(done.output.replace("│", " ").split())


def test_one_launcher_of_the_machine_with_the_address_opens_the_place() -> None:
    port = free_port()
    assert at("127.0.0.1", port).opens_the_place()
    assert at("localhost", port).opens_the_place()
    assert not at("192.0.2.1").opens_the_place()  # no machine has it (RFC 5737)
    assert not at("nobody.invalid").opens_the_place()
    with socket.create_server(("127.0.0.1", port)):
        assert not at("127.0.0.1", port).opens_the_place()


def test_the_way_to_the_place_tells_address_and_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    at("nobody.invalid").choose_interface()
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    assert at("nobody.invalid").own_address() is None
    assert at("127.0.0.1").meeting()["local_addr"] == "127.0.0.1"
    at("127.0.0.1").choose_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"]
    assert os.environ["GLOO_SOCKET_IFNAME"] in {name for _, name in socket.if_nameindex()}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine")
    at("127.0.0.1").choose_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "mine"
