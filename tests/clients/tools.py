"""Every tool that nobody of the project wrote and that is run against Sluice, or is not and why:
its version, what is run, and which of its failures are no fault of Sluice.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from benchmarks.peers.environments import Packages, python_with
from e2e.cluster.toolchain.cache import cache_directory
from tests.clients import kubernetes_tools, load_tools
from tests.clients.cases import ANSWER, CONTEXT, LOOKED_UP, QUESTION, VALUE
from tests.clients.environments import CLIENTS, ENVIRONMENTS, NotHereError, Place
from tests.clients.load_tools import Outcomes

LOAD: Final = "Load generators and evaluators"
LIBRARIES: Final = "Client libraries"
AGENTS: Final = "Coding agents"
CONFORMANCE: Final = "Peers' own tests"
KUBERNETES: Final = "Kubernetes and metrics"
GROUPS: Final = (LOAD, LIBRARIES, AGENTS, CONFORMANCE, KUBERNETES)
NPM: Final = (
    "openai@6.49.0", "ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92", "@ai-sdk/openai@3.0.141",
    "zod@4.6.7",
)  # fmt: skip
NPM_SECONDS: Final = 300.0
TINY: Final = "the small model"


@dataclass(frozen=True)
class Tool:
    """One line of the page."""

    name: str
    group: str
    version: str
    what: str
    run: Callable[[Place], Outcomes] | None = None
    known: Mapping[str, str] = field(default_factory=dict)
    """Why a case fails, by what its name and message, as `name: message`, have in them."""
    not_run: str = ""

    def reason(self, case: str, message: str) -> str:
        """Of a known failure; "" of one that is not."""
        text = f"{case}: {message}"
        return next((why for part, why in self.known.items() if part in text), "")


def library(name: str, packages: Packages, environment: str, place: Place) -> Outcomes:
    """Cases of `more_clients`."""
    command = [python_with(environment, packages), "-m", "tests.clients.more_clients"]
    return _outcomes(place.run([*command, name, f"{place.url}/v1"], any_status=True))


def documented(name: str, place: Place) -> Outcomes:
    """Cases of `with_NAME`, and what the page for users says."""
    environment = CLIENTS[name]
    command = [python_with(environment, ENVIRONMENTS[environment]), "-m"]
    command_line = [*command, f"tests.clients.with_{name}", f"{place.url}/v1"]
    return _outcomes(place.run(command_line, any_status=True))


def npm(name: str, place: Place) -> Outcomes:
    """Cases of `npm_clients.mjs`."""
    folder = cache_directory() / "peers" / "compat-npm"
    stamp = folder / "packages"
    node, command = shutil.which("node"), shutil.which("npm")
    if node is None or command is None:
        raise NotHereError("node and npm are not installed")
    if not stamp.exists() or stamp.read_text() != repr(NPM):
        folder.mkdir(parents=True, exist_ok=True)
        install = [command, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *NPM]
        subprocess.run(install, check=True, capture_output=True, timeout=NPM_SECONDS)
        stamp.write_text(repr(NPM))
    words = {"question": QUESTION, "answer": ANSWER, "context": CONTEXT}
    words |= {"lookedUp": LOOKED_UP, "value": VALUE}
    own = {"NODE_MODULES": str(folder / "node_modules"), "WORDS": json.dumps(words)}
    program = [node, "tests/clients/npm_clients.mjs", name, f"{place.url}/v1"]
    return _outcomes(place.run(program, own))


def agent(name: str, place: Place) -> Outcomes:
    """A test of `test_coding_agents`."""
    file = "tests/clients/test_coding_agents.py"
    command = [sys.executable, "-m", "pytest", "-m", "full", "-rs", "-k", name, file]
    command += ["-p", "no:cacheprovider", f"--basetemp={place.folder / name}"]
    variables = {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
    case = "a whole turn with a call of a tool"
    try:
        printed = place.run(command, {"OMP_NUM_THREADS": "1", **variables})
    except RuntimeError as error:
        return {case: str(error)[-600:]}
    if "SKIPPED" in printed:
        raise NotHereError("npm is not installed")
    return {case: ""}


def _outcomes(printed: str) -> Outcomes:
    lines = printed.splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise RuntimeError("the program told of no case")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _library(name: str, packages: str, what: str, **more: Any) -> Tool:
    """A client of `more_clients`: `packages` are those of its environment, its own first."""
    wanted = tuple(packages.split())
    version = wanted[0].partition("==")[2]
    environment = more.pop("environment", f"compat-{name}")
    run = partial(library, name, Packages(wanted), environment)
    return Tool(name, LIBRARIES, more.pop("version", version), what, run, **more)


def _documented(name: str, what: str) -> Tool:
    own = {"langchain": "langchain-openai", "llamaindex": "llama-index-llms-openai-like"}
    wanted = ENVIRONMENTS[CLIENTS[name]].wanted
    (version,) = (w.partition("==")[2] for w in wanted if w.startswith(f"{own.get(name, name)}=="))
    return Tool(name, LIBRARIES, version, what, partial(documented, name))


_OWN = "a choice of the cluster: no CPU limit and `IfNotPresent` by default, tags of a release"
LINTED: Final = {
    "CKV_K8S_11": _OWN, "Container Resources": _OWN, "CKV_K8S_43": _OWN, "CKV_K8S_15": _OWN,
    "Image Pull Policy": _OWN,
    "CKV_K8S_38": "operator and router ask the API server, with their tokens",
    "CKV_K8S_40": "a UID below 10000",
    "Security Context User Group ID": "a UID below 10000",
    "CKV_K8S_21": "the sample is rendered into the namespace `default`",
    "Deployment Replicas": "the sample has one replica of each",
    "Ephemeral Storage": "engines and routers ask for ephemeral storage, and no limit ends them",
    "Pod NetworkPolicy": "the operator's NetworkPolicy limits what comes in, and not what goes out",
}  # fmt: skip
"""Of checkov and kube-score."""
_CALLS = f"{TINY} calls no tool by itself, and does not reason"
VLLM_DIFFERS: Final = {
    "not implemented yet": "a field that is not implemented, and refused by name",
    "got -1": "-1 for all log-probabilities is refused by name",
    "with_echo": "`echo` has no effect in a chat",
    "kv_transfer_params": "`kv_transfer_params` is set by the service itself",
    "tokenizer_info": "`/tokenizer_info` is not served",
    "test_basic_completion_with_emoji": "a key is left out where vLLM has `null`",
    "per_request_metrics": "answers have no metrics in them",
    "stream_options": "`continuous_usage_stats` has an effect without `include_usage`, too",
    "cache_usage": "`cache_creation_input_tokens` is always 0",
    "takes no arguments": "a test of vLLM's own classes",
    "startswith": "the chat template of another model",
    "chat_template": "the chat template of another model",
    "test_single_completion": "tokens of another model's tokenizer are counted",
    "unique completions": f"{TINY} is too certain of its text for two different ones",
    "imed out": f"{TINY} knows no end, and a test has 20 s",
    "'max_tokens' == 'end_turn'": f"{TINY} knows no end, and is cut",
    "test_anthropic_structured_output": f"{TINY} knows no end, and is cut",
    "test_anthropic_tool_call": _CALLS,
    "function_calling": _CALLS,
}
"""Of vLLM's tests."""
_TALKS = f"{TINY} does not write JSON that nothing enforces"
_OPENAI = "openai==3.3.0 anthropic==2.12.0"
TOOLS: Final = (
    Tool(
        "guidellm", LOAD, "0.8.1", "chats and completions, 6 requests of synthetic text each",
        load_tools.guidellm,
    ),
    Tool(
        "aiperf", LOAD, "0.13.0", "chats streamed and not, completions, responses; 6 requests each",
        load_tools.aiperf,
    ),
    Tool(
        "inference-perf", LOAD, "0.7.0", "completions, streamed, random prompts",
        load_tools.inference_perf,
    ),
    Tool(
        "vllm-bench-serve", LOAD, load_tools.VLLM,
        "`vllm.benchmarks.serve` of the source distribution, with stubs for vLLM's other modules; "
        "24 prompts each way",
        load_tools.vllm_bench,
    ),
    Tool(
        "sglang-bench", LOAD, load_tools.SGLANG,
        "`sglang.benchmark.serving` of the wheel, with stubs for SGLang's other modules; "
        "6 prompts a backend",
        load_tools.sglang_bench,
        {"backend sglang": "asks `/generate`, SGLang's own route, which is not served"},
    ),
    Tool(
        "lm-eval", LOAD, "0.4.13", "tasks of its own with 4 rows: generated, and by log-likelihood",
        load_tools.lm_eval,
        {"backend=remote": "asks `/tokenizer_info`, which is not served; `huggingface` works"},
    ),
    Tool(
        "evalscope, llmperf, genai-perf, k6, locust", LOAD, "", "",
        not_run="nobody has tried them",
    ),
    Tool(
        "openai-npm", LIBRARIES, "6.49.0",
        "chats, streams, echo, zod schemas, tools, responses, aborts, models",
        partial(npm, "openai"),
    ),
    Tool(
        "ai-sdk", LIBRARIES, "ai 6.0.326, openai-compatible 2.0.92, openai 3.0.141",
        "text, streams, objects and tools with three providers", partial(npm, "ai-sdk"),
        {"as it comes": "sends a schema only with `supportsStructuredOutputs: true`"},
    ),
    _library(
        "openai", _OPENAI, "chats, streams, echo, schemas, tools, responses",
    ),
    _library(
        "anthropic", _OPENAI, "messages, streams, tools, counts, models",
        environment="compat-openai", version="2.12.0",
    ),
    _library(
        "pydantic-ai", "pydantic-ai-slim[openai]==2.68.0",
        "chats and responses: runs, streams, native, tool and prompted outputs",
        known={"prompted_output": _TALKS},
    ),
    _library(
        "openai-agents", "openai-agents==0.24.0",
        "chats and responses: runs, streams, output types, tools",
    ),
    _library(
        "haystack", "haystack-ai==3.4.0", "both generators: runs, streams, structured output, tools"
    ),
    _library(
        "semantic-kernel", "semantic-kernel==1.45.0",
        "chats, streams, structured output, functions, text",
    ),
    _library(
        "smolagents", "smolagents[openai]==1.26.0",
        "generates, streams, tools, structured output",
    ),
    _library(
        "dspy", "dspy==3.4.1 litellm==1.106.2", "chats, responses, text, Predict",
        known={"predicts": f"sends no schema for a model that it does not know, and {_TALKS}"},
    ),
    _library(
        "outlines", "outlines==1.3.3 openai==3.3.0",
        "from_vllm, from_sglang, from_openai: types, choices, patterns, grammars",
        known={"takes_lark": "`outlines.cfg` in Lark is refused by name: grammars are EBNF"},
    ),
    _documented("langchain", "chats, streams, batches, completions, schemas, tools, responses"),
    _documented("instructor", "four modes, partial models, asynchronously"),
    _documented("litellm", "two providers: chats, streams, text, schemas, tools, responses"),
    _documented("llamaindex", "chats, streams, completions, schemas, tools"),
    _library(
        "open-webui", _OPENAI, "the calls it makes, not the program: models, a chat, a title",
        environment="compat-openai", version="its calls",
    ),
    Tool(
        "codex", AGENTS, "0.169.0", "`codex exec` against an engine, the call forced",
        partial(agent, "codex"),
    ),
    Tool(
        "claude-code", AGENTS, "2.1.197", "`claude -p` against an engine, the call forced",
        partial(agent, "claude"),
    ),
    Tool(
        "vllm-tests", CONFORMANCE, load_tools.VLLM,
        "seven files of `tests/entrypoints` that need only a URL, with stubs for vLLM's classes; "
        "the tests that begin within 200 s",
        load_tools.vllm_tests, VLLM_DIFFERS,
    ),
    Tool(
        "smg-e2e", CONFORMANCE, "", "",
        not_run="the tests of SGLang's gateway were not adapted",
    ),
    Tool(
        "kustomize", KUBERNETES, "as installed, here 5.5.0 in kubectl",
        "every base and overlay is built",
        kubernetes_tools.kustomize,
    ),
    Tool(
        "helm", KUBERNETES, "4.3.1", "lint, four templates, a wrong value", kubernetes_tools.helm,
    ),
    Tool(
        "checkov", KUBERNETES, "3.3.0", "the operator's manifests, and those of a service",
        kubernetes_tools.checkov, LINTED,
    ),
    Tool(
        "kube-score", KUBERNETES, "1.20.0", "the operator's manifests, and those of a service",
        kubernetes_tools.kube_score, LINTED,
    ),
    Tool(
        "promtool", KUBERNETES, "as installed, here 2.42",
        "`check metrics` of an engine and a router",
        kubernetes_tools.promtool,
    ),
    Tool(
        "pluto, kubeconform, kube-linter, kubescape", KUBERNETES, "", "",
        not_run="nobody has tried them; the API server's own dry run is in the tests",
    ),
)  # fmt: skip
