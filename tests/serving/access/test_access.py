"""Rights by token, by certificate or by both, and rates of calls."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.authority import AUDIENCE, ISSUER, Authority, Issuer
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.access import access as rates
from weir.serving.access.access import Access, Rates
from weir.serving.access_config import RIGHTS, AuthConfig
from weir.serving.errors import RequestError

ONE = Issuer()
MONITOR = "certificate DNS:localhost, IP:127.0.0.1, CN:monitor"


def verdict(access: Access, authorization: list[str], certificate: bytes | None, *rights: Any) -> str:
    try:
        return asyncio.run(access.admit(authorization, certificate, *rights)).name
    except RequestError as error:
        return error.reason


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def certificates(folder: Path) -> dict[str, bytes]:
    authority = Authority(folder)
    return {name: authority.pair(name)[0] for name in ("monitor", "shop")}


def auth(folder: Path, **others: Any) -> AuthConfig:
    known = {"jwks": ONE.publish(folder / "jwks.json"), "issuer": ISSUER, "audience": AUDIENCE}
    return AuthConfig.model_validate(known | others)


def test_every_method_of_the_protocol_is_a_right() -> None:
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["RetrievalService"].methods}
    assert set(RIGHTS) == methods | {"exact", "pin", "reflection"}


def test_without_rules_every_known_caller_may_do_everything(folder: Path, certificates: dict[str, bytes]) -> None:
    by_token, by_certificate = Access(auth(folder)), Access(AuthConfig(), certificates=True)
    assert by_token.asks
    assert by_certificate.asks
    assert not Access(AuthConfig()).asks
    assert verdict(by_token, [f"Bearer {ONE.token()}"], None, *RIGHTS) == "token ann"
    assert verdict(by_token, [f"bearer {ONE.token()}"], None, *RIGHTS) == "token ann"
    assert verdict(by_token, [], None, "Retrieve") == "TOKEN_MISSING"
    assert verdict(by_token, [], certificates["shop"], "Retrieve") == "TOKEN_MISSING"
    assert verdict(by_certificate, [], certificates["shop"], *RIGHTS) == MONITOR.replace("monitor", "shop")


@pytest.mark.parametrize(
    "authorization", [["Basic YTpi"], ["Bearer"], [""], ["Bearer a.b.c", "Bearer a.b.c"], ["Token x"]]
)
def test_other_headers_are_no_tokens(folder: Path, authorization: list[str]) -> None:
    assert verdict(Access(auth(folder)), authorization, None, "Retrieve") == "TOKEN_INVALID"


def test_a_bad_token_is_refused_beside_a_good_certificate(folder: Path, certificates: dict[str, bytes]) -> None:
    access = Access(auth(folder, allow=[{"certificates": ["CN:monitor"]}]), certificates=True)
    assert verdict(access, [], certificates["monitor"], *RIGHTS) == MONITOR
    assert verdict(access, [f"Bearer {ONE.token(exp=1)}"], certificates["monitor"], "Retrieve") == "TOKEN_EXPIRED"


def test_a_name_counts_in_its_own_place_only(folder: Path, certificates: dict[str, bytes]) -> None:
    access = Access(AuthConfig.model_validate({"allow": [{"certificates": ["DNS:monitor"]}]}), certificates=True)
    assert verdict(access, [], certificates["monitor"], "Retrieve") == "NOT_ALLOWED"


RULES = st.fixed_dictionaries(
    {"to": st.lists(st.sampled_from(RIGHTS), min_size=1, max_size=3)},
    optional={
        "scopes": st.lists(st.sampled_from(["read", "write"]), max_size=2),
        "subjects": st.lists(st.sampled_from(["ann", "bob"]), max_size=2),
        "certificates": st.lists(st.sampled_from(["CN:monitor", "CN:shop"]), max_size=2),
    },
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(RULES, min_size=1, max_size=3),
    st.tuples(
        st.none() | st.tuples(st.sampled_from(["ann", "bob"]), st.sets(st.sampled_from(["read", "write"]))),
        st.none() | st.sampled_from(["monitor", "shop"]),
    ),
    st.sampled_from(RIGHTS),
)
def test_a_caller_may_do_what_one_of_the_rules_says(
    folder: Path,
    certificates: dict[str, bytes],
    rules: list[dict[str, Any]],
    caller: tuple[tuple[str, set[str]] | None, str | None],
    right: str,
) -> None:
    token, name = caller

    def fits(rule: dict[str, Any]) -> bool:
        wanted = {kind: set(rule.get(kind, ())) for kind in ("scopes", "subjects", "certificates")}
        if not any(wanted.values()):
            return token is not None
        subject, scopes = token or (None, set())
        return bool(
            subject in wanted["subjects"] or scopes & wanted["scopes"] or f"CN:{name}" in wanted["certificates"]
        )

    allowed = {right for rule in rules if fits(rule) for right in rule["to"]}
    sent = [] if token is None else [f"Bearer {ONE.token(sub=token[0], scope=' '.join(token[1]))}"]
    found = verdict(Access(auth(folder, allow=rules)), sent, certificates.get(name or ""), right)
    if token is None and not allowed:
        assert found == "TOKEN_MISSING"
    elif right in allowed:
        assert found.startswith(("token", "certificate"))
    else:
        assert found == "NOT_ALLOWED"


def test_one_caller_s_rate_is_its_own(folder: Path) -> None:
    access = Access(auth(folder, calls_per_second=0.001, burst=3))

    async def work() -> None:
        ann, bob = ([f"Bearer {ONE.token(sub=sub)}"] for sub in ("ann", "bob"))
        for _ in range(3):
            await access.admit(ann, None, "Retrieve")
        with pytest.raises(RequestError) as refusal:
            await access.admit([f"Bearer {ONE.token(sub='ann', scope='another')}"], None, "Retrieve")
        assert refusal.value.reason == "CALL_RATE_EXCEEDED"
        for _ in range(3):
            await access.admit(bob, None, "Retrieve")

    asyncio.run(work())


@given(
    st.floats(0.1, 50),
    st.integers(1, 20),
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 2)), max_size=60),
)
def test_a_caller_gets_its_burst_and_its_rate_whatever_others_do(
    per_second: float, burst: int, calls: list[tuple[str, float]]
) -> None:
    at = [0.0]
    both, alone = Rates(per_second, burst, lambda: at[0]), Rates(per_second, burst, lambda: at[0])
    taken: list[float] = []
    for caller, pause in calls:
        at[0] += pause
        waits = both.take(caller)
        if caller == "a":
            assert waits == alone.take("a")
            taken += [at[0]] if not waits else []
    # In any span, no more calls than the bucket holds and gains.
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + per_second * (taken[last] - taken[first]) + 1e-6


def test_who_waits_as_long_as_told_is_let_in() -> None:
    at = [0.0]
    limited = Rates(4, 2, lambda: at[0])
    assert [limited.take("a") for _ in range(3)] == [0, 0, 0.25]
    at[0] += 0.25
    assert limited.take("a") == 0


def test_memory_is_bounded() -> None:
    limited = Rates(1, 1)
    for number in range(rates._MOST_CALLERS + 100):
        limited.take(str(number))
    assert len(limited._buckets) == rates._MOST_CALLERS
