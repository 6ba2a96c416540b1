"""The file for a laptop: valid, pinned, and mounting what is there."""

import subprocess

import pytest
import yaml

from tests.deploy.support import DEPLOY, tool
from weir.config import assignments, load_settings
from weir.up.ports import with_ports

FILE = DEPLOY / "compose.yaml"
SERVICES = yaml.safe_load(FILE.read_text())["services"]


def test_it_is_what_the_compose_specification_allows() -> None:
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "build" in service or "@sha256:" in service["image"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_what_is_mounted_is_there() -> None:
    sources = {volume.split(":")[0] for service in SERVICES.values() for volume in service["volumes"]}
    for folder in sorted(source for source in sources if source.startswith(".")):
        assert (DEPLOY / folder).is_dir(), folder
    build = SERVICES["weir"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_its_settings_are_settings_and_their_ports_are_published() -> None:
    service = SERVICES["weir"]
    pairs = [one.removeprefix("--set=") for one in service["command"] if one.startswith("--set=")]
    values, problems = assignments(pairs)
    assert not problems
    settings = with_ports(load_settings(overrides=values | {"store": "s"}), 0)
    assert settings.serving.host == settings.monitor.page_host == "0.0.0.0"  # noqa: S104 - published on loopback only
    assert {f"127.0.0.1:{port}:{port}" for port in (settings.serving.port, settings.monitor.page_port)} <= set(
        service["ports"]
    )
