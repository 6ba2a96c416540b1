"""The client's side: what it sends, and what it refuses to send."""

from pathlib import Path

import grpc
import pytest

from tests.serving.authority import Authority
from weir.serving.access.channel import Channel, Reopened, SentToken, bearer_token
from weir.serving.access_config import ClientConfig


@pytest.mark.parametrize("text", ["", "two words", "line\nline", "naïve", "Bearer x", "=="])
def test_what_is_no_token_is_not_sent_and_not_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(ValueError, match="holds no bearer token") as refusal:
        bearer_token(file)
    assert not text or text not in str(refusal.value)


def test_the_token_of_now_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    token = SentToken(file)
    sent: list[object] = []

    def send() -> object:
        token(None, lambda metadata, error: sent.append((metadata, error)))  # type: ignore[arg-type]
        return sent[-1]

    assert send() == ((("authorization", "Bearer first"),), None)
    file.write_text("a-second-one\n")
    token._token._looked = float("-inf")
    assert send() == ((("authorization", "Bearer a-second-one"),), None)
    file.unlink()
    token._token._looked = float("-inf")
    assert send() == ((("authorization", "Bearer a-second-one"),), None)


def test_a_channel_is_opened_anew_for_new_certificates_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.files("client")
    config = ClientConfig.model_validate({"tls": True, "ca_file": authority.file, **pair})
    channel = Channel("127.0.0.1:1", config, [])
    first = channel.open()
    channel._channels._looked = float("-inf")
    assert channel.open() is first
    authority.files("client")
    channel._channels._looked = float("-inf")
    assert channel.open() is not first
    channel.close()


@pytest.mark.parametrize("broken", ["ca_file", "certificate_file", "key_file", "token_file"])
def test_files_that_cannot_be_used_are_named_at_once(tmp_path: Path, broken: str) -> None:
    authority, token = Authority(tmp_path), tmp_path / "token"
    token.write_text("a.b.c")
    files = {"ca_file": str(authority.file), "token_file": str(token), **authority.files("client")}
    config = ClientConfig.model_validate({"tls": True, **files})
    Channel("127.0.0.1:1", config, []).close()
    Path(files[broken]).write_text("no such thing")
    with pytest.raises(ValueError, match=r"."):
        Channel("127.0.0.1:1", config, [])
    Path(files[broken]).unlink()
    with pytest.raises(FileNotFoundError, match=Path(files[broken]).name):
        Channel("127.0.0.1:1", config, [])


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.files("one"), authority.files("other")
    config = ClientConfig.model_validate({"tls": True, **one, "key_file": other["key_file"]})
    with pytest.raises(ValueError, match=r"other\.key is not the key of .*one\.crt"):
        Channel("127.0.0.1:1", config, [])


def test_without_settings_it_is_plain_text() -> None:
    channel = Channel("127.0.0.1:1", None, [])
    assert isinstance(channel.open(), grpc.Channel)
    channel.close()


@pytest.mark.parametrize(
    ("target", "authority"),
    [
        ("ipv4:10.0.0.1:1,10.0.0.2:1", "10.0.0.1:1"),
        ("ipv6:[::1]:1,[::2]:1", "[::1]:1"),
        ("ipv4:10.0.0.1:1", None),
        ("dns:///a,b:1", None),
        ("127.0.0.1:1", None),
    ],
)
def test_of_several_addresses_one_is_named_as_asked(target: str, authority: str | None) -> None:
    opened = Reopened(target, None, [("a", 1)], lambda _, options: options, lambda *_: None)
    assert dict(opened.open()).get("grpc.default_authority") == authority
    assert ("a", 1) in opened.open()
