"""The manifests: rendered, valid to the last field, and true to what the processes are."""

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.deploy.support import (
    COMPONENTS,
    DEPLOY,
    KUBERNETES,
    OVERLAYS,
    needs_kubectl,
    rendered,
    resources,
    tool,
    with_components,
)
from weir.cli.ranks import Nodes
from weir.config import Settings, load_settings
from weir.serving.histories.redis_database import PASSWORD
from weir.trainer.settings.trainer import TrainerConfig

pytestmark = needs_kubectl

BASE = KUBERNETES / "base"
WORKLOADS = {"weir-ingest", "weir-trainer", "weir-serving", "weir-monitor"}
ENGINES = {
    "kind": {
        "weir-trainer-variant",
        "weir-kafka",
        "weir-jobmanager",
        "weir-taskmanager",
        "weir-producer",
        "weir-prometheus",
    },
    "production": {"weir-job-server"},
}
"""What else runs in an overlay, beside what operators make of their resources."""
UNITS = {"": 1.0, "m": 1e-3, "Mi": 2.0**20, "Gi": 2.0**30}


def workloads(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in found if each["kind"] in {"StatefulSet", "Deployment"}}


def container(workload: dict[str, Any]) -> dict[str, Any]:
    """Return the container of a workload; of several, the one after which the pod is named."""
    return dict(workload["spec"]["template"]["spec"]["containers"][0])


def amount(text: str) -> float:
    """Return what a quantity of Kubernetes means, in cores or bytes."""
    [found] = re.findall(r"^([0-9.]+)([A-Za-z]*)$", text)
    return float(found[0]) * UNITS[found[1]]


def configuration(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ConfigMap that holds the file of settings."""
    [only] = [each for each in found if each["kind"] == "ConfigMap" and "weir.yaml" in each["data"]]
    return only


def settings(found: list[dict[str, Any]], folder: Path) -> Settings:
    """Return the settings that an overlay gives to every process; raises `SettingsError` for those it may not."""
    [text] = [
        each["data"]["weir.yaml"] for each in found if each["kind"] == "ConfigMap" and "weir.yaml" in each["data"]
    ]
    file = folder / "weir.yaml"
    file.write_text(text)
    return load_settings(file)


@pytest.mark.parametrize("names", [*[[name] for name in COMPONENTS], COMPONENTS], ids="+".join)
def test_every_component_renders_and_validates(names: list[str], tmp_path: Path) -> None:
    validate(rendered(with_components(names, tmp_path)), tmp_path)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_renders_and_validates(overlay: str, tmp_path: Path) -> None:
    validate(rendered(KUBERNETES / "overlays" / overlay), tmp_path)


def validate(text: str, folder: Path) -> None:
    """Refuse unknown fields and wrong values; custom resources have schemas of their own (`make deploy-check`)."""
    file = folder / "rendered.yaml"
    operators = ("monitoring.coreos.com/", "flink.apache.org/", "kafka.strimzi.io/")
    own = [each for each in yaml.safe_load_all(text) if not each["apiVersion"].startswith(operators)]
    file.write_text(yaml.safe_dump_all(own))
    done = subprocess.run(
        [tool("kubernetes-validate"), "--strict", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr


def test_an_unknown_field_would_be_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="readOnlyRoot"):
        validate(rendered(BASE).replace("readOnlyRootFilesystem", "readOnlyRoot"), tmp_path)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ports_probes_and_times_are_those_of_the_settings(overlay: str, tmp_path: Path) -> None:
    found = resources(KUBERNETES / "overlays" / overlay)
    config, all_of = settings(found, tmp_path), workloads(found)
    assert set(all_of) == WORKLOADS | ENGINES[overlay]
    ports = {name: {p["name"]: p["containerPort"] for p in container(all_of[name])["ports"]} for name in WORKLOADS}
    assert ports["weir-ingest"] == {"metrics": config.pipeline.metrics_port}
    assert ports["weir-trainer"] == {"metrics": config.trainer.metrics_port, "rendezvous": 29400}
    probed = config.serving.health_port
    open_to_probes = {} if probed is None else {"health": probed}
    wanted = {"grpc": config.serving.port, "metrics": config.serving.metrics_port, **open_to_probes}
    assert ports["weir-serving"] == wanted
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container(all_of["weir-serving"])[probe]["grpc"]["port"] == (probed or config.serving.port)
    assert ports["weir-monitor"] == {"metrics": config.monitor.metrics_port}
    assert config.monitor.page_host == "127.0.0.1", "reached by port-forward only: it shows what users do"
    assert config.serving.host == "0.0.0.0"  # noqa: S104 - the network policy says who may call
    for stage in (config.pipeline, config.trainer, config.serving, config.monitor):
        assert stage.metrics_host == "0.0.0.0"  # noqa: S104 - Prometheus scrapes pods by their addresses
    assert config.monitor.target == f"dns:///weir-serving:{config.serving.port}"
    server = all_of["weir-serving"]["spec"]["template"]["spec"]
    before = container(all_of["weir-serving"])["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = before + config.serving.drain_seconds + config.serving.grace_seconds
    assert server["terminationGracePeriodSeconds"] > needed


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_page_reaches_the_metrics_that_it_shows(overlay: str, tmp_path: Path) -> None:
    found = resources(KUBERNETES / "overlays" / overlay)
    config = settings(found, tmp_path)
    named = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in found if "spec" in each}
    monitor = {"podSelector": {"matchLabels": labels("monitor")}}
    others = {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "weir"}}}
    leaving = named["NetworkPolicy", "weir-monitor"]["egress"]
    assert {"to": [others], "ports": [{"port": "metrics"}]} in leaving
    assert set(config.monitor.page_metrics) == {"pipeline", "trainer", "serving"}, "its own metrics are in its pod"
    for url in config.monitor.page_metrics.values():
        where = urlsplit(url)
        assert where.path == "/metrics"
        assert where.port in [each["port"] for each in named["Service", where.hostname or ""]["ports"]]
        arriving = named["NetworkPolicy", where.hostname or ""]["ingress"]
        assert {"from": [monitor], "ports": [{"port": "metrics"}]} in arriving


def labels(component: str) -> dict[str, str]:
    return {"app.kubernetes.io/part-of": "weir", "app.kubernetes.io/component": component}


def test_production_asks_who_calls(tmp_path: Path) -> None:
    found = resources(KUBERNETES / "overlays" / "production")
    config, all_of = settings(found, tmp_path), workloads(found)
    assert not config.serving.reflection
    assert config.client.tls
    assert config.serving.tls.client_ca_file is not None
    files = {
        "weir-serving": config.serving.tls.model_dump().values(),
        "weir-monitor": [config.client.ca_file, config.client.certificate_file, config.client.key_file],
    }
    for name, named in files.items():
        [mount] = [each["mountPath"] for each in container(all_of[name])["volumeMounts"] if each["name"] == "tls"]
        assert {file.parent for file in named} == {Path(mount)}
        [volume] = [each for each in all_of[name]["spec"]["template"]["spec"]["volumes"] if each["name"] == "tls"]
        assert volume["secret"]["secretName"] == f"{name}-tls"
    monitor = {
        right for rule in config.serving.auth.allow if "CN:weir-monitor" in rule.certificates for right in rule.to
    }
    assert monitor == {"Retrieve", "GetInfo", "exact"}, "what serving/monitor asks for"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_rollout_of_servers_is_slower_than_clients_ask_for_addresses(overlay: str) -> None:
    server = workloads(resources(KUBERNETES / "overlays" / overlay))["weir-serving"]["spec"]
    assert server["minReadySeconds"] > 30  # the default of gRPC's grpc.dns_min_time_between_resolutions_ms
    assert server["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_trainers_pods_are_as_many_as_may_meet(overlay: str, tmp_path: Path) -> None:
    found = resources(KUBERNETES / "overlays" / overlay)
    trainer = workloads(found)["weir-trainer"]
    arguments = dict(each.removeprefix("--").split("=", 1) for each in container(trainer)["args"] if "=" in each)
    nodes = Nodes.of(arguments["nodes"], arguments["meet"], arguments["address"])
    assert nodes is not None
    # One that is lost must not hold up the others, and more may come.
    assert nodes.least == 1
    assert nodes.most > trainer["spec"]["replicas"]
    assert settings(found, tmp_path).trainer.batch_size >= nodes.most * int(arguments["ranks"])
    assert nodes.host.startswith("weir-trainer-0.weir-trainer.")
    # Letters order the addresses as they order the pods, so the first pod has rank 0.
    assert arguments["address"] == nodes.host.replace("weir-trainer-0", "$(POD_NAME)")
    assert trainer["spec"]["podManagementPolicy"] == "Parallel"
    [service] = [s for s in found if s["kind"] == "Service" and s["metadata"]["name"] == trainer["spec"]["serviceName"]]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_selector_selects_the_pods_of_its_component(overlay: str) -> None:
    found = resources(KUBERNETES / "overlays" / overlay)
    pods = {name: each["spec"]["template"]["metadata"]["labels"] for name, each in workloads(found).items()}
    checked: Counter[str] = Counter()
    for each in found:
        name, spec = each["metadata"]["name"], each.get("spec", {})
        if name not in pods:
            continue
        labels = spec.get("selector") or spec.get("podSelector")
        if labels is None:
            continue
        labels = labels.get("matchLabels", labels)
        selected = [pod for pod, has in pods.items() if labels.items() <= has.items()]
        assert selected == [name], (each["kind"], name)
        checked[name] += 1
    assert {checked[name] for name in WORKLOADS} == {4}  # workload, service, budget and policy
    assert min(checked[name] for name in ENGINES[overlay]) >= 2  # workload and policy


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_change_of_the_settings_rolls_every_pod(overlay: str) -> None:
    found = resources(KUBERNETES / "overlays" / overlay)
    [config] = [
        each["metadata"]["name"] for each in found if each["kind"] == "ConfigMap" and "weir.yaml" in each["data"]
    ]
    assert config != "weir"  # a hash of its content follows
    known = {each["metadata"]["name"] for each in found if each["kind"] == "ConfigMap"}
    for name, each in workloads(found).items():
        volumes = each["spec"]["template"]["spec"]["volumes"]
        mounted = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
        assert set(mounted) <= known, name  # by names with a hash
        assert mounted == [config] or name not in WORKLOADS, name


def test_the_autoscaler_alone_says_how_many_servers(tmp_path: Path) -> None:
    assert "replicas" not in workloads(resources(with_components(["hpa"], tmp_path)))["weir-serving"]["spec"]


def test_gpus_are_asked_for_with_the_images_that_can_use_them(tmp_path: Path) -> None:
    found = workloads(resources(with_components(["gpu"], tmp_path)))
    for name in ("weir-trainer", "weir-serving"):
        only = container(found[name])
        assert only["image"] == f"{name}-gpu:0.1.0"
        assert only["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_follower_of_redis_is_reached_scraped_and_alone(tmp_path: Path) -> None:
    found = resources(with_components(["pod-monitor", "redis-follower"], tmp_path))
    all_of = workloads(found)
    follower = all_of["weir-histories"]
    assert (follower["spec"]["replicas"], follower["spec"]["strategy"]) == (1, {"type": "Recreate"})
    assert container(follower)["image"] == container(all_of["weir-serving"])["image"]
    [port] = container(follower)["ports"]
    assert port["containerPort"] == Settings(store="s").histories.metrics_port
    for name in ("weir-serving", "weir-histories"):
        [policy] = [each for each in found if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == name]
        assert {"port": 6379} in [port for rule in policy["spec"]["egress"] for port in rule.get("ports", [])]
        [password] = [each for each in container(all_of[name])["env"] if each["name"] == PASSWORD]
        assert password["valueFrom"]["secretKeyRef"]["optional"] is True
    [monitor] = [each for each in found if each["kind"] == "PodMonitor"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    labels = follower["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert job(endpoint["relabelings"], labels) == "weir-histories"


def test_the_trainer_of_a_variant_keeps_to_itself(tmp_path: Path) -> None:
    folder = with_components(["pod-monitor", "variant"], tmp_path)
    file = folder / "kustomization.yaml"
    named = {"configMapGenerator": [{"name": "weir-variant", "literals": ["name=flat"]}]}
    file.write_text(file.read_text() + yaml.safe_dump(named))
    found = resources(folder)
    all_of = workloads(found)
    pods = {name: each["spec"]["template"]["metadata"]["labels"] for name, each in all_of.items()}
    plain, variant = container(all_of["weir-trainer"]), container(all_of["weir-trainer-variant"])
    assert plain["image"] == variant["image"]
    renamed = [each.replace("weir-trainer", "weir-trainer-variant") for each in plain["args"]]
    assert variant["args"] == [*renamed, "--variant=$(WEIR_VARIANT)"]
    [told] = [each for each in variant["env"] if each["name"] == "WEIR_VARIANT"]
    key = told["valueFrom"]["configMapKeyRef"]
    named_in = {each["metadata"]["name"]: each["data"] for each in found if each["kind"] == "ConfigMap"}
    assert named_in[key["name"]][key["key"]] == "flat"
    config = Settings(store="s", trainer=TrainerConfig(variants={"flat": {"batch_size": 64}}))
    port = config.trainer.of_variant("flat").metrics_port
    assert {each["name"]: each["containerPort"] for each in variant["ports"]}["metrics"] == port
    assert all_of["weir-trainer-variant"]["spec"]["serviceName"] == "weir-trainer-variant"
    own = [each for each in found if each["metadata"]["name"] == "weir-trainer-variant"]
    assert len(own) == 5, "workload, service, budget, policy, account"
    assert "component: trainer\n" not in yaml.safe_dump_all(own), "a selector of the champion's trainer"
    for each in own:
        selector = each.get("spec", {}).get("selector") or each.get("spec", {}).get("podSelector", {"no": "pods"})
        selected = [name for name, has in pods.items() if selector.get("matchLabels", selector).items() <= has.items()]
        assert selected == ([] if each["kind"] == "ServiceAccount" else ["weir-trainer-variant"])
    [monitor] = [each for each in found if each["kind"] == "PodMonitor"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    jobs = [
        job(endpoint["relabelings"], pods["weir-trainer-variant"] | {"apps.kubernetes.io/pod-index": index})
        for index in ("0", "1")
    ]
    assert jobs == ["weir-trainer-variant", None]


def test_the_pod_monitor_names_the_jobs_as_the_rules_do(tmp_path: Path) -> None:
    """Applies the relabelling to the labels of the pods, as Prometheus would."""
    found = resources(with_components(["pod-monitor"], tmp_path))
    [monitor] = [each for each in found if each["kind"] == "PodMonitor"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    jobs = {}
    for name, each in workloads(found).items():
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert endpoint["port"] in {port["name"] for port in container(each)["ports"]}
        for index in ("0", "1"):
            jobs[name, index] = job(endpoint["relabelings"], labels | {"apps.kubernetes.io/pod-index": index})
    assert {jobs[name, "0"] for name in WORKLOADS} == {"weir-pipeline", "weir-trainer", "weir-serving", "weir-monitor"}
    assert jobs["weir-trainer", "1"] is None


def test_the_alert_on_memory_knows_the_limits() -> None:
    rules = yaml.safe_load((DEPLOY / "monitoring/rules/memory.yaml").read_text())["groups"][0]["rules"]
    known = {rule["labels"]["job"]: int(re.fullmatch(r"vector\((\d+)\)", rule["expr"])[1]) for rule in rules}
    limits = {name: container(each)["resources"]["limits"] for name, each in workloads(resources(BASE)).items()}
    units = {"Mi": 2**20, "Gi": 2**30}
    found = {name: int(each["memory"][:-2]) * units[each["memory"][-2:]] for name, each in limits.items()}
    assert known == {name.replace("ingest", "pipeline"): size for name, size in found.items()}


def job(rules: list[dict[str, Any]], labels: dict[str, str]) -> str | None:
    """Return the job that a pod's target gets, None where it is dropped."""
    known = {f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9_]', '_', key)}": value for key, value in labels.items()}
    for rule in rules:
        found = re.fullmatch(rule["regex"], ";".join(known.get(label, "") for label in rule["sourceLabels"]))
        if found and rule.get("action") == "drop":
            return None
        if found:
            known[rule["targetLabel"]] = found.expand(rule["replacement"].replace("$", "\\"))
    return known["job"]
