"""The KV fingerprint: equal or not, and what differs."""

from __future__ import annotations

from sluice_contract.config.kv_transfer import KvFingerprint, differences

FINGERPRINT = KvFingerprint(
    model="hf://org/m",
    model_revision="a1b2",
    page_size_tokens=16,
    kv_dtype="bfloat16",
    tensor_parallel_size=2,
)


def test_its_text_is_one_stable_line() -> None:
    assert str(FINGERPRINT) == "hf://org/m@a1b2 bfloat16 page=16 page-layer-kv-token-head-dim"


def test_its_text_names_weights_that_an_engine_has_found() -> None:
    found = FINGERPRINT.model_copy(update={"weights": "c0ffee"})
    assert str(found) == f"{FINGERPRINT} weights=c0ffee"
    assert differences(FINGERPRINT, found) == ("weights:  and c0ffee",)


def test_the_number_of_gpus_is_not_compared() -> None:
    wider = FINGERPRINT.model_copy(update={"tensor_parallel_size": 4})
    assert differences(FINGERPRINT, wider) == ()
    assert FINGERPRINT.compared == wider.compared
    assert str(FINGERPRINT) == str(wider)


def test_differences_name_the_key_and_both_values() -> None:
    other = FINGERPRINT.model_copy(update={"page_size_tokens": 32, "model_revision": None})
    assert differences(FINGERPRINT, FINGERPRINT) == ()
    assert differences(FINGERPRINT, other) == (
        "modelRevision: a1b2 and None",
        "pageSizeTokens: 16 and 32",
    )
