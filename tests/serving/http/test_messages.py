import pytest

from weir.runtime.listening import is_loopback
from weir.serving.http.messages import is_own_host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_addresses_of_this_machine_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["::", "10.0.0.1", "example.com", "localhost.example.com", "", "127.0.0.1.nip.io"])
def test_addresses_that_others_reach(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("header", ["localhost", "localhost:80", "127.0.0.1:50080", "[::1]:50080", "[::1]"])
def test_names_of_this_machine(header: str) -> None:
    assert is_own_host(header)


@pytest.mark.parametrize(
    "header", ["evil.example", "evil.example:50080", "127.0.0.1.evil.example:80", "", "[::2]:80", ":80"]
)
def test_names_of_others(header: str) -> None:
    assert not is_own_host(header)
