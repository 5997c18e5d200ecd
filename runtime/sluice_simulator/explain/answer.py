"""The answer to a question of `sluice explain`: every arrangement, simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sluice_contract.config.accelerators import memory_mib_of
from sluice_contract.wire.explain import Answer, Arrangement, Question
from sluice_runtime.engine.sizing.plan import running_requests

from sluice_simulator.costs import Cost
from sluice_simulator.explain.arrangements import NAMES, arrangement, busy_rate, impossible
from sluice_simulator.explain.models import ExplainedModel, known_model, model_from
from sluice_simulator.explain.roofline import NoCostError, roofline

Progress = Callable[[str], None]
"""Receives a line for a person before each part of the simulation."""


def answered(question: Question, progress: Progress = lambda line: None) -> Answer:
    """Simulates every arrangement; the answer may be the reason why none could be.

    Raises:
        ValueError: the model's config.json cannot be used.
    """
    model = _model(question)
    if model is None:
        names = " and ".join(dict.fromkeys(question.model_names))
        text = f"the shape of {names} is not known: give its config.json with --model-config"
        return Answer(cost_source="", kv_pool_tokens=0, missing=text)
    try:
        cost = roofline(model, question.accelerator, question.memory_percent)
    except NoCostError as error:
        return Answer(cost_source="", kv_pool_tokens=0, missing=str(error))
    rows = question.max_running_requests or _chosen_rows(question, model, cost)
    question = question.model_copy(update={"max_running_requests": rows})
    why = impossible(question, cost)
    return Answer(
        cost_source=f"{cost.name}, {cost.source}",
        kv_pool_tokens=cost.kv_pool_tokens,
        max_running_requests=rows,
        arrangements=() if why else _simulated(question, model, cost, progress),
        missing=why,
    )


def _simulated(
    question: Question, model: ExplainedModel, cost: Cost, progress: Progress
) -> tuple[Arrangement, ...]:
    arrangements, rate = list[Arrangement](), busy_rate(question, cost)
    for number, name in enumerate(NAMES, 1):
        progress(f"simulating two engines, each {cost.name}: arrangement {number} of {len(NAMES)}")
        arrangements.append(arrangement(name, question, model, cost, near=rate))
        rate = arrangements[-1].requests_per_second  # often close to the next one's
    return tuple(arrangements)


def _chosen_rows(question: Question, model: ExplainedModel, cost: Cost) -> int:
    """Number of rows that the engine would choose."""
    memory_mib = memory_mib_of(question.accelerator) or 0
    return running_requests(
        cost.kv_pool_tokens,
        question.cuda_graph_max_batch,
        model.shape.vocabulary_size,
        model.shape.context_length_tokens,
        memory_mib << 20,
    ).rows


def _model(question: Question) -> ExplainedModel | None:
    if question.model_config_text is not None:
        model: ExplainedModel | None = model_from(question.model_config_text)
    else:
        model = known_model(question.model_names)
    return replace(model, kv_number_bytes=1) if model and question.has_fp8_pages else model
