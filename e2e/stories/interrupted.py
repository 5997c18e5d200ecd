"""One long stream whose engine is killed in the middle of it.

Greedy and in float32, so there is only one right answer. Knows neither pools nor services.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any, Final

import httpx

from e2e.kubectl import Kubectl
from e2e.model.tasks import make_prompt
from e2e.stories.pods import Pod, held_requests, load_report
from e2e.stories.service import MODEL

HUNG_SECONDS: Final = 120
LONG: Final[dict[str, Any]] = {
    "model": MODEL,
    "prompt": make_prompt("copy", 128, seed=31)[0],
    "max_tokens": 4000,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
}


class LongAnswer:
    """The stream of one request, read by a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/completions"
        self._text: list[str] = []
        self._ends: list[str] = []
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self._begun.wait(HUNG_SECONDS), "no first token"

    def kill_its_engine(self, kubectl: Kubectl, engines: Sequence[Pod]) -> Pod:
        """Sends SIGKILL to the one of `engines` that works on the answer; no other request may run
        on them."""
        (busy,) = [pod for pod in engines if held_requests(load_report(kubectl, pod))]
        busy.kill()
        return busy

    def text(self) -> str:
        """The whole answer; fails if the stream broke off."""
        self._thread.join(HUNG_SECONDS)
        assert self._ends == ["[DONE]"], self._ends
        return "".join(self._text)

    def _read(self) -> None:
        with (
            httpx.Client(trust_env=False, timeout=HUNG_SECONDS) as client,
            client.stream("POST", self._url, json=LONG) as answer,
        ):
            for line in answer.iter_lines():
                self._begun.set()
                self._take(line.removeprefix("data: "))

    def _take(self, data: str) -> None:
        if not data:
            return
        if not data.startswith("{") or '"error"' in data:
            self._ends.append(data)
        else:
            self._text += [choice["text"] for choice in json.loads(data)["choices"]]
