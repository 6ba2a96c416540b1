"""Champion and challenger in one process: users are split, bundles followed, roles exchanged without a gap."""

import gc
import logging
import weakref
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleLog, Store, hash_id
from weir.contracts.bundles.variants import (
    CHAMPION,
    MAIN,
    Roles,
    VariantError,
    challenges,
    crown,
    line_of,
    log_of,
    version_of,
)
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import Memory, load_bundle
from weir.serving.bundles.watcher import BundleWatcher, DeltaPolicy
from weir.serving.client import by_embedding, by_history, by_item, by_user
from weir.serving.config import ServingConfig
from weir.serving.server import serve
from weir.serving.variants import LineMetrics, VariantRouter, bundles_of, check_roles, chosen, only


def write(store: Store, catalogue: Catalogue, variant: str, version: str = "v1") -> str:
    name = version_of(version, variant)
    write_bundle(line_of(store, variant), name, catalogue, variant=variant)
    return name


def follow(store: Store, *names: str, **config: object) -> tuple[VariantRouter, CollectorRegistry]:
    registry = CollectorRegistry()
    settings = ServingConfig.model_validate(config)
    made = bundles_of(store, settings, registry, names, between=lambda change: change(), describe=lambda _, __: None)
    assert isinstance(made, VariantRouter)
    return made, registry


def versions(lines: VariantRouter) -> list[str]:
    return [bundle.version for bundle in lines.loaded]


def shown(registry: CollectorRegistry) -> dict[tuple[str, str], str]:
    """Return the versions of the metric, by line and role."""
    samples = [one for family in registry.collect() for one in family.samples]
    labels = [one.labels for one in samples if one.name == "weir_variant_served_info"]
    return {(one["variant"], one["role"]): one["version"] for one in labels}


def test_without_variants_one_line_is_followed(store: Store) -> None:
    made = bundles_of(
        store, ServingConfig(), CollectorRegistry(), (), between=lambda change: change(), describe=lambda _, __: None
    )
    assert isinstance(made, BundleWatcher)
    assert made.variant == MAIN


def test_both_lines_are_followed(store: Store, catalogue: Catalogue) -> None:
    lines, registry = follow(store, "new")
    lines.refresh()
    assert lines.bundle is None
    assert versions(lines) == []
    write(store, catalogue, MAIN)
    lines.refresh()
    assert versions(lines) == ["v1"]
    write(store, catalogue, "new")
    lines.refresh()
    assert versions(lines) == ["v1", "v1--new"]
    write(store, Catalogue.random(items=50), "new", "v2")
    lines.refresh()
    assert versions(lines) == ["v1", "v2--new"]
    assert shown(registry) == {(MAIN, "champion"): "v1", ("new", "challenger"): "v2--new"}
    # What the server shows of its bundle is the champion's.
    assert registry.get_sample_value("weir_index_items") == 200
    assert registry.get_sample_value("weir_bundle_swaps_total") == 1


def test_the_challenger_alone_answers_nobody(store: Store, catalogue: Catalogue) -> None:
    write(store, catalogue, "new")
    lines, _ = follow(store, "new")
    lines.refresh()
    assert lines.bundle is None


def test_calls_are_counted_by_line_but_for_probes(store: Store, catalogue: Catalogue) -> None:
    for variant in (MAIN, "new"):
        write(store, catalogue, variant)
    lines, registry = follow(store, "new", challenger_share=1.0)
    lines.refresh()
    assert lines.bundle is not None
    for request in (
        pb.RetrieveRequest(queries=[by_user("ann")]),
        pb.RetrieveRequest(queries=[by_user("bob")], probe=True),
        pb.EmbedRequest(queries=[by_user("ann")]),
    ):
        lines.choose(request, lines.bundle)
    counts = [registry.get_sample_value("weir_variant_calls_total", {"variant": line}) for line in (MAIN, "new")]
    assert counts == [1, 1]


def test_a_promoted_challenger_is_served_from_memory(store: Store, catalogue: Catalogue) -> None:
    for variant in ("new", MAIN):
        write(store, catalogue, variant)
    lines, registry = follow(store, "new")
    lines.refresh()
    main, new = lines.loaded
    gone = weakref.ref(main)
    del main
    crown(store, "new", "ann@shop", "better")
    lines.refresh()
    assert lines.loaded == [new]
    assert lines.promoted == "v1--new"
    gc.collect()
    assert gone() is None, "the line that has no role any more stays in memory"
    assert shown(registry) == {("new", "champion"): "v1--new"}
    assert registry.get_sample_value("weir_bundle_rollbacks_total") == 0
    info = {"version": "v1--new", "index": "Flat", "metric": "cosine"}
    assert registry.get_sample_value("weir_bundle_served_info", info) == 1
    write(store, Catalogue.random(items=50), "new", "v2")
    lines.refresh()
    assert versions(lines) == ["v2--new"]
    assert registry.get_sample_value("weir_index_items") == 50


def test_the_one_before_answers_until_another_line_is_loaded(store: Store, catalogue: Catalogue) -> None:
    for variant in (MAIN, "new"):
        write(store, catalogue, variant)
    crown(store, "new", "ann@shop", "better")
    lines, registry = follow(store, "new")
    lines.refresh()
    assert versions(lines) == ["v1--new"]
    crown(store, MAIN, "ann@shop", "it was a mistake")
    path = Path(store.path("bundles/v1/vectors.npy"))
    path.write_bytes(path.read_bytes()[:10])
    lines.refresh()
    assert versions(lines) == ["v1--new"]
    write(store, catalogue, MAIN, "v2")
    lines.refresh()
    assert versions(lines) == ["v2"]
    assert shown(registry) == {(MAIN, "champion"): "v2"}


def test_roles_that_cannot_be_read_stay(store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture) -> None:
    for variant in (MAIN, "new"):
        write(store, catalogue, variant)
    lines, _ = follow(store, "new")
    lines.refresh()
    store.write(CHAMPION, b"{}")
    with caplog.at_level(logging.INFO):
        lines.refresh()
        lines.refresh()
    assert versions(lines) == ["v1", "v1--new"]
    assert caplog.text.count("the champion cannot be read, the roles stay") == 1
    log_of(store, "new").store.remove("bundles/CURRENT")
    store.remove(CHAMPION)
    lines.refresh()
    assert versions(lines) == ["v1", "v1--new"]


def test_a_server_starts_where_roles_cannot_be_read_but_not_where_they_are_wrong(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    check_roles(store, ("new",))
    store.write(CHAMPION, b"{}")
    check_roles(store, ("new",))
    assert "the champion cannot be read yet" in caplog.text
    store.remove(CHAMPION)
    with pytest.raises(VariantError, match="could all challenge main"):
        check_roles(store, ("new", "newer"))
    write(store, catalogue, "new")
    crown(store, "new", "ann@shop", "better")
    with pytest.raises(VariantError, match="new is served to all"):
        serve(store, ServingConfig())


def test_several_processes_answer_from_one_bundle(store: Store) -> None:
    with pytest.raises(ValueError, match="2 processes answer from one bundle"):
        serve(store, ServingConfig(processes=2), variants=("new",))


def test_memory_must_hold_the_other_line_too(store: Store, catalogue: Catalogue) -> None:
    """Where three bundles do not fit, the champion's is dropped before the next one is read."""
    for variant in (MAIN, "new"):
        write(store, catalogue, variant)
    lines, registry = follow(store, "new")
    lines.refresh()
    size = lines.loaded[0].size
    assert size > 0
    for limit, dropped in ((4, 0), (2, 1)):
        for watcher in lines._watchers.values():
            watcher.policy = DeltaPolicy("auto", Memory((256 << 20) + limit * size))
        write(store, catalogue, MAIN, f"v{limit}0")
        lines.refresh()
        assert registry.get_sample_value("weir_bundle_dropped_total") == dropped
    assert versions(lines) == ["v1--new"]
    lines.refresh()
    assert versions(lines) == ["v20", "v1--new"]


def test_only_what_answers_now_is_shown(store: Store, catalogue: Catalogue) -> None:
    for version in ("v1", "v2"):
        write_bundle(store, version, catalogue)
    registry = CollectorRegistry()
    metrics = LineMetrics(registry)
    for version in ("v1", "v2"):
        metrics.show(Roles(), [load_bundle(BundleLog(store), version)])
    labels = {"variant": "main", "role": "champion"}
    assert registry.get_sample_value("weir_variant_served_info", {**labels, "version": "v2"}) == 1
    assert registry.get_sample_value("weir_variant_served_info", {**labels, "version": "v1"}) is None
    assert registry.get_sample_value("weir_variant_calls_total", {"variant": "main"}) == 0


SHARE = 0.5
USERS = [f"user-{number}" for number in range(40)]


@pytest.fixture
def both(store: Store, catalogue: Catalogue) -> tuple[LoadedBundle, LoadedBundle]:
    write_bundle(store, "v1", catalogue)
    write_bundle(line_of(store, "new"), "v1--new", catalogue, variant="new")
    return load_bundle(BundleLog(store), "v1"), load_bundle(log_of(store, "new"), "v1--new")


def asked(both: tuple[LoadedBundle, LoadedBundle], *queries: pb.Query, version: str = "", share: float = SHARE) -> str:
    return chosen(pb.RetrieveRequest(queries=queries, bundle_version=version), *both, share).version


def test_users_are_split_by_their_key(both: tuple[LoadedBundle, LoadedBundle]) -> None:
    wanted = ["v1--new" if challenges(hash_id(user), "new", SHARE) else "v1" for user in USERS]
    assert [asked(both, by_user(user)) for user in USERS] == wanted
    assert set(wanted) == {"v1", "v1--new"}
    assert {asked(both, by_user(user), share=0) for user in USERS} == {"v1"}
    assert {asked(both, by_user(user), share=1) for user in USERS} == {"v1--new"}


def test_the_first_user_of_a_call_decides_for_all_of_it(both: tuple[LoadedBundle, LoadedBundle]) -> None:
    """Whatever comes before and after: an answer names one bundle."""
    for first, second in pairwise(USERS):
        alone = asked(both, by_user(first))
        assert asked(both, by_history(["item-1"]), by_user(first), by_user(second)) == alone


def test_calls_without_a_user_are_the_champions(both: tuple[LoadedBundle, LoadedBundle]) -> None:
    assert asked(both, by_history(["item-1"]), by_item("item-2"), by_embedding([0.0] * 8), share=1) == "v1"
    assert asked(both, share=1) == "v1"


def test_vectors_are_the_champions_whoever_asks(both: tuple[LoadedBundle, LoadedBundle]) -> None:
    """They may come back as queries without their user."""
    assert chosen(pb.EmbedRequest(queries=[by_user("ann")]), *both, 1.0).version == "v1"


def test_a_pin_overrides_the_split(both: tuple[LoadedBundle, LoadedBundle]) -> None:
    for user in USERS:
        assert asked(both, by_user(user), version="v1") == "v1"
        assert asked(both, by_user(user), version="v1--new") == "v1--new"
    assert chosen(pb.EmbedRequest(bundle_version="v1--new"), *both, 0.0).version == "v1--new"
    # Neither: the request is refused later on, with the champion's version.
    assert asked(both, by_user("ann"), version="v0", share=1) == "v1"


def test_with_one_bundle_there_is_no_choice(both: tuple[LoadedBundle, LoadedBundle]) -> None:
    assert only(pb.RetrieveRequest(bundle_version="v9"), both[0]) is both[0]
