"""What engines are told of a tenant: bounds of its priority, and a salt that says nothing of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.base import ConfigError
from sluice_contract.config.router import MAX_PRIORITY, Auth, Tenant, parse_router_config
from sluice_contract.wire.handover import HEADER_SECONDS, Bound, InvalidSignatureError
from sluice_contract.wire.tenants import claims_of, signed_tenant, verified_tenant

KEY, OTHER_KEY = b"k" * 32, b"x" * 32
NOW = 1_800_000_000.0
PRIORITIES = st.none() | st.integers(-MAX_PRIORITY, MAX_PRIORITY)


@given(PRIORITIES, PRIORITIES)
def test_the_default_never_exceeds_the_maximum(default: int | None, most: int | None) -> None:
    if default is not None and most is not None and default > most:
        with pytest.raises(ValueError, match="defaultPriority at most maxPriority"):
            Tenant(name="a", default_priority=default, max_priority=most)
        return
    claims = claims_of(KEY, Tenant(name="a", default_priority=default, max_priority=most))
    assert claims.max_priority == (MAX_PRIORITY if most is None else most)
    assert claims.default_priority == (min(0, claims.max_priority) if default is None else default)


@given(st.text(min_size=1, max_size=255), st.text(min_size=1, max_size=255))
def test_salts_are_of_one_tenant_and_one_service(one: str, other: str) -> None:
    salts = [claims_of(KEY, Tenant(name=name)).salt for name in (one, other)]
    assert (salts[0] == salts[1]) == (one == other)
    assert claims_of(OTHER_KEY, Tenant(name=one)).salt != salts[0]
    assert len(one) < 3 or one not in salts[0]


@pytest.mark.parametrize(
    ("key", "request_id", "age_seconds", "says"),
    [
        (KEY, "r1", 0.0, None),
        (OTHER_KEY, "r1", 0.0, "X-Sluice-Tenant: not signed"),
        (KEY, "r2", 0.0, "another request"),
        (KEY, "r1", HEADER_SECONDS + 1, "60 s ago"),
    ],
)
def test_only_the_service_s_router_names_a_tenant(
    key: bytes, request_id: str, age_seconds: float, says: str | None
) -> None:
    claims = claims_of(KEY, Tenant(name="a", max_priority=3))
    value = signed_tenant(key, claims, request_id, NOW - age_seconds, Bound("/generate", "00"))
    if says is None:
        assert verified_tenant((KEY,), value, "r1", "/generate", NOW) == (claims, "00")
        return
    with pytest.raises(InvalidSignatureError, match=says):
        verified_tenant((KEY,), value, "r1", "/generate", NOW)


def test_a_tenant_s_header_is_good_for_one_path_and_body() -> None:
    claims = claims_of(KEY, Tenant(name="a"))
    value = signed_tenant(KEY, claims, "r1", NOW, Bound("/generate", "digest"))
    assert verified_tenant((KEY,), value, "r1", "/generate", NOW) == (claims, "digest")
    with pytest.raises(InvalidSignatureError, match="X-Sluice-Tenant: signed for another path"):
        verified_tenant((KEY,), value, "r1", "/v1/completions", NOW)


def test_who_is_not_listed_asks_for_nothing_above_0() -> None:
    everybody = Auth(keys_directory="/keys")
    assert everybody.tenant("a") == Tenant(name="a")
    listed = Auth(keys_directory="/keys", tenants=(Tenant(name="a", max_priority=5),))
    assert listed.tenant("a").max_priority == 5
    assert listed.tenant("b") == Tenant(name="b", max_priority=0)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "auth.tenants only beside handoverKeyFile"),
        ({"handoverKeyFile": "/key"}, None),
        ({"handoverKeyFile": "/key", "auth": [{"name": "a"}, {"name": "a"}]}, "each name once"),
    ],
)
def test_a_router_s_file_with_tenants(more: dict[str, object], says: str | None) -> None:
    auth = {"keysDirectory": "/keys", "tenants": more.pop("auth", [{"name": "a"}])}
    file = json.dumps({"engines": ["http://h:1"], "auth": auth} | more)
    if says is None:
        assert parse_router_config(file).auth is not None
        return
    with pytest.raises(ConfigError, match=says):
        parse_router_config(file)
