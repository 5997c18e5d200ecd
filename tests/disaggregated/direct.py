"""A request of a decode engine without a router: the test signs which prefill engine it asks."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any

import httpx
from sluice_contract.http_heads import REQUEST_ID_HEADER
from sluice_contract.wire.handover import PREFILL_HEADER, Bound, PrefillRef, signed_header

from tests.disaggregated.asking import Request
from tests.disaggregated.engines import KEY, EngineProcess
from tests.runtime.launch.processes import HANG_SECONDS


def life_of(prefill: EngineProcess, **changes: Any) -> PrefillRef:
    """As the router would name the engine now."""
    report = prefill.load()
    assert report.bootstrap_port is not None
    ref = PrefillRef(host="127.0.0.1", port=report.bootstrap_port, epoch=report.epoch, name="p-0")
    return ref.model_copy(update=changes)


def ask_pair(
    decode: EngineProcess, ref: PrefillRef, request: Request, *, key: bytes = KEY
) -> httpx.Response:
    """The answer of this one pair: nobody tries another."""
    name = secrets.token_hex(8)
    content = httpx.Request("POST", decode.url, json=request.body).content
    bound = Bound(request.path, hashlib.sha256(content).hexdigest())
    signed = signed_header(key, ref, name, time.time(), bound)
    headers = {REQUEST_ID_HEADER: name, PREFILL_HEADER: signed}
    url = decode.url + request.path
    with httpx.Client(verify=False, timeout=HANG_SECONDS, headers=headers) as client:
        return client.post(url, json=request.body)


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, code and message of a refusal."""
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]
