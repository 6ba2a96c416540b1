"""The overlay of one machine: it fits there, and its engines are set up as those of `make engines`."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.engines.flink import job_manager
from deploy.engines.settings import EngineSettings
from deploy.monitoring.prometheus import HERE, JOBS
from tests.deploy.support import KUBERNETES, needs_kubectl, resources
from tests.deploy.test_kubernetes import amount, container, settings, workloads
from tests.deploy.test_monitoring import promtool

pytestmark = needs_kubectl

OVERLAY = KUBERNETES / "overlays/kind"
CONTROL_PLANE = 0.95
"""Cores that the control plane of a kind node requests."""


def found() -> list[dict[str, Any]]:
    return resources(OVERLAY)


def data(name: str) -> dict[str, str]:
    """Return the content of a ConfigMap, whatever the hash in its name."""
    [only] = [
        each["data"]
        for each in found()
        if each["kind"] == "ConfigMap" and re.fullmatch(rf"{name}-[a-z0-9]{{10}}", each["metadata"]["name"])
    ]
    return dict(only)


def requested(kind: str) -> dict[str, float]:
    """Return what one pod of each workload requests."""
    return {
        name: sum(amount(each["resources"]["requests"][kind]) for each in pod["spec"]["template"]["spec"]["containers"])
        for name, pod in workloads(found()).items()
    }


def test_all_pods_and_the_surge_of_a_rollout_fit_two_cores_beside_a_control_plane() -> None:
    replicas = {name: each["spec"]["replicas"] for name, each in workloads(found()).items()}
    cores = {name: size * replicas[name] for name, size in requested("cpu").items()}
    surge = requested("cpu")["weir-serving"]
    assert sum(cores.values()) + surge <= 2 - CONTROL_PLANE
    assert sum(size * replicas[name] for name, size in requested("memory").items()) <= 8 * 2**30


def test_flink_is_set_up_as_by_make_engines(tmp_path: Path) -> None:
    here = EngineSettings(folder=tmp_path)
    service = job_manager(here)
    service.prepare()
    wanted = yaml.safe_load((tmp_path / "flink/config.yaml").read_text())
    has = yaml.safe_load(data("weir-flink")["config.yaml"])
    addresses = re.compile(r".*(address|host|port|dir|dirs)")
    assert {key: has.get(key) for key in wanted if not addresses.fullmatch(key)} == {
        key: value for key, value in wanted.items() if not addresses.fullmatch(key)
    }
    opened = {one for one in service.command if one.startswith("--add-opens=")}
    for name in ("weir-jobmanager", "weir-taskmanager"):
        for each in workloads(found())[name]["spec"]["template"]["spec"]["containers"]:
            options = {one["name"]: one.get("value") for one in each["env"]}.get("JDK_JAVA_OPTIONS")
            assert each["name"] == "worker-pool" or set(options.split()) == opened


def test_the_settings_name_services_and_ports_that_are_there(tmp_path: Path) -> None:
    config = settings(found(), tmp_path)
    services = {each["metadata"]["name"]: each["spec"] for each in found() if each["kind"] == "Service"}
    ports = {f"{name}:{port['port']}" for name, spec in services.items() for port in spec["ports"]}
    stream = config.stream
    named = {stream.job_endpoint, stream.artifact_endpoint, stream.flink_rest.removeprefix("http://")}
    named.add(config.pipeline.log.removeprefix("kafka://").split("/")[0])
    assert named <= ports
    all_of = workloads(found())
    for spec in services.values():
        [pod] = [
            each["spec"]["template"]
            for each in all_of.values()
            if spec["selector"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        open_ports = {port["name"] for one in pod["spec"]["containers"] for port in one.get("ports", ())}
        assert {port["targetPort"] for port in spec["ports"]} <= open_ports
    pool = all_of["weir-taskmanager"]["spec"]["template"]["spec"]["containers"][1]
    assert pool["command"][-1] == stream.worker_pool
    assert int(container(all_of["weir-kafka"])["ports"][0]["containerPort"]) == 9092


def test_prometheus_has_every_rule_and_the_names_of_jobs(tmp_path: Path) -> None:
    files = [path for kind in ("rules", "alerts") for path in (HERE / kind).glob("*.yaml")]
    assert data("weir-rules") == {f"{path.parent.name}-{path.name}": path.read_text() for path in files}
    text = data("weir-prometheus")["prometheus.yml"]
    config = yaml.safe_load(text)
    jobs = {one["job_name"] for one in config["scrape_configs"]} - {"weir"}
    jobs |= {group["labels"]["job"] for one in config["scrape_configs"] for group in one.get("static_configs", ())}
    assert jobs == set(JOBS)
    for one in config["scrape_configs"]:
        assert {"target_label": "namespace", "replacement": "weir"} in one["relabel_configs"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt install prometheus")
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    for name, text in data("weir-rules").items():
        (tmp_path / "rules" / name).write_text(text)
    text = data("weir-prometheus")["prometheus.yml"].replace("/etc/prometheus", str(tmp_path))
    (tmp_path / "prometheus.yml").write_text(text)
    promtool("check", "config", str(tmp_path / "prometheus.yml"))
