"""The workload "serving": Llama-3-8B's shape, prompts of 1,024 and answers of 128 tokens, at most
256 at once, three times as many in all. Output tokens a second, prompts included in the time."""

from __future__ import annotations

from benchmarks.engine_loop import recorded
from benchmarks.gpu.engines import (
    at_once,
    check_served,
    engine,
    first_tokens,
    gaps,
    output_rate,
    told,
)
from benchmarks.turns import scaled

AT_ONCE, WAVES = scaled(256), 3
PROMPT, ANSWER = scaled(1024), scaled(128)


def main() -> None:
    with engine("llama3-8b", max_running_requests=AT_ONCE) as made:
        recorded(made, at_once([(256, 4)] * 32), overlap=True)
        record = recorded(made, at_once([(PROMPT, ANSWER)] * AT_ONCE * WAVES), overlap=True)
    check_served(record)
    told("serving", output_rate(record), "output tokens/s")
    told("serving.itl_p50", gaps(record).p50, "s")
    told("serving.ttft_p50", first_tokens(record).p50, "s, all requests there at once")


if __name__ == "__main__":
    main()
