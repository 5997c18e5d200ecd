"""Load generators, evaluators, and peers' own tests, each with a few requests to a router: what
each reports of them. No time that they measure is looked at.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.peers.environments import Packages, python_with
from e2e.cluster.toolchain.cache import cache_directory
from tests.clients.cases import MODEL
from tests.clients.environments import NotHereError, Place, package_index

TOKENIZER: Final = Path("e2e/model/sluice-tiny").resolve()
STAND_INS: Final = Path(__file__).with_name("stand_ins.py")
REQUESTS: Final = 24
DOWNLOAD_SECONDS: Final = 300.0
OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}
VLLM: Final = "0.33.0"
VLLM_SHA256: Final = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
SGLANG: Final = "0.5.23"
TORCH: Final = ("torch==2.11.0",)
"""The project's own, which uv has in its cache."""
GUIDELLM: Final = Packages(("guidellm==0.8.1",), TORCH)
AIPERF: Final = Packages(("aiperf==0.13.0",), TORCH)
LM_EVAL: Final = Packages(("lm-eval[api,hf]==0.4.13",), TORCH)
INFERENCE_PERF: Final = Packages(("inference-perf==0.7.0",), TORCH)
PEERS: Final = Packages(
    (
        "aiohttp", "anthropic==2.12.0", "httpx", "jinja2", "jsonschema", "msgspec", "numpy",
        "openai==3.57.0", "orjson", "pandas", "pillow", "pybase64", "pydantic", "pytest<9.2",
        "pytest-asyncio", "regex", "requests", "tqdm", "transformers==5.23.0",
    )
)  # fmt: skip
"""What peers' own code needs of others, for `stand_ins`."""
VLLM_TESTS: Final = (
    "serve/tokenize/test_tokenization.py",
    "openai/test_return_token_ids.py",
    "openai/chat_completion/test_chat_echo.py",
    "openai/chat_completion/test_chat_completion.py",
    "openai/completion/test_completion.py",
    "anthropic/test_messages.py",
    "openai/chat_completion/test_completion_with_function_calling.py",
)
"""Those that need only a URL, and end with a model that knows no end."""

Outcomes = dict[str, str]


def vllm_archive() -> Path:
    """vLLM's source distribution, downloaded once."""
    path = cache_directory() / "peers" / f"vllm-{VLLM}.tar.gz"
    if not path.exists():
        content = _release("vllm", path.name)
        assert hashlib.sha256(content).hexdigest() == VLLM_SHA256
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return path


def _release(project: str, file: str) -> bytes:
    """A file whose name begins so."""
    page = httpx.get(
        f"{package_index()}/{project}/", follow_redirects=True, timeout=DOWNLOAD_SECONDS
    )
    link = re.search(rf'href="([^"#]+{re.escape(file)}[^"#]*)', page.text)
    if link is None:
        raise NotHereError(f"{package_index()} has no {file}")
    url = page.url.join(link[1])
    return httpx.get(url, follow_redirects=True, timeout=DOWNLOAD_SECONDS).content


def vllm_code(*prefixes: str) -> Path:
    """A folder that has of vLLM's source what begins so."""
    folder = cache_directory() / "peers" / f"vllm-{VLLM}-{prefixes[0].partition('/')[0]}"
    if not folder.exists():
        with tarfile.open(fileobj=io.BytesIO(vllm_archive().read_bytes())) as files:
            for member in files.getmembers():
                member.name = member.name.partition("/")[2]
                if member.isfile() and member.name.startswith(prefixes):
                    files.extract(member, folder, filter="data")
    return folder


def sglang_code() -> Path:
    """A folder that has SGLang's benchmark."""
    folder = cache_directory() / "peers" / f"sglang-{SGLANG}"
    if not folder.exists():
        wheel = f"sglang-{SGLANG}-cp311-"  # all have the same Python
        with zipfile.ZipFile(io.BytesIO(_release("sglang", wheel))) as files:
            wanted = [name for name in files.namelist() if name.startswith("sglang/benchmark/")]
            files.extractall(folder, wanted)
    return folder


def bench(place: Place, folder: Path, module: str, *options: str) -> None:
    command = [python_with("compat-peers", PEERS), STAND_INS, folder, place.url, "bench", module]
    own = ["--base-url", place.url, "--model", MODEL, "--tokenizer", TOKENIZER, "--disable-tqdm"]
    place.run([*command, *own, *options], OFFLINE)


def vllm_bench(place: Place) -> Outcomes:
    folder = vllm_code("vllm/benchmarks/")
    chats = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"]

    def asked(*options: str) -> None:
        sizes = ["--random-input-len", "64", "--random-output-len", "16", "--max-concurrency", "4"]
        data = ["--dataset-name", "random", "--num-prompts", str(REQUESTS), *sizes]
        report = ["--save-result", "--result-dir", str(place.folder), "--result-filename", "r.json"]
        bench(place, folder, "vllm.benchmarks.serve", *data, *report, *options)
        result = json.loads((place.folder / "r.json").read_text())
        assert (result["completed"], result["failed"]) == (REQUESTS, 0), result["failed"]

    return outcomes(
        {
            "chats": lambda: asked(*chats),
            "chats, --ignore-eos": lambda: asked(*chats, "--ignore-eos"),
            "completions": asked,
            "completions, --ignore-eos": lambda: asked("--ignore-eos"),
        }
    )


def sglang_bench(place: Place) -> Outcomes:
    folder = sglang_code()

    def asked(backend: str) -> None:
        report = place.folder / f"{backend}.json"
        sizes = ["--random-input-len", "64", "--random-output-len", "16", "--num-prompts", "6"]
        data = ["--dataset-name", "random-ids", *sizes, "--output-file", str(report)]
        bench(place, folder, "sglang.benchmark.serving", "--backend", backend, *data)
        assert json.loads(report.read_text())["completed"] == 6

    backends = ("vllm", "vllm-chat", "sglang")
    return outcomes({f"backend {name}": partial(asked, name) for name in backends})


def guidellm(place: Place) -> Outcomes:
    program = python_with("guidellm", GUIDELLM).with_name("guidellm")

    def asked(path: str) -> None:
        report = place.folder / "guidellm.json"
        backend = f"kind=openai_http,target={place.url},model={MODEL},request_format={path}"
        data = ["--profile=kind=concurrent,streams=2", "--constraint=kind=max_requests,count=6"]
        data += ["--data=kind=synthetic_text,prompt_tokens=32,output_tokens=8"]
        own = [f"--tokenizer=kind=hf_auto,model={TOKENIZER}", f"--output=kind=json,path={report}"]
        command = [program, "run", f"--backend={backend}", *data, *own, "--disable-progress"]
        place.run(command, OFFLINE)
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
        requests = benchmark["requests"]
        assert (len(requests["successful"]), requests["errored"]) == (6, [])

    kinds = {"chats": "/v1/chat/completions", "completions": "/v1/completions"}
    return outcomes({kind: partial(asked, path) for kind, path in kinds.items()})


def aiperf(place: Place) -> Outcomes:
    program = python_with("compat-aiperf", AIPERF).with_name("aiperf")

    def asked(kind: str, *options: str) -> None:
        folder = place.folder / f"aiperf-{kind}{len(options)}"
        data = ["--request-count", "6", "--concurrency", "2", "--isl", "64", "--osl", "16"]
        own = ["--tokenizer", TOKENIZER, "--artifact-dir", folder, "--ui", "none"]
        command = [program, "profile", "--model", MODEL, "--url", place.url]
        place.run([*command, "--endpoint-type", kind, *data, *own, *options])
        (report,) = folder.rglob("profile_export_aiperf.json")
        result = json.loads(report.read_text())
        errors = result.get("error_request_count") or {"avg": 0}
        assert (result["request_count"]["avg"], errors["avg"]) == (6, 0)

    return outcomes(
        {
            "chat": lambda: asked("chat", "--streaming"),
            "chat, not streamed": lambda: asked("chat"),
            "completions": lambda: asked("completions", "--streaming"),
            "responses": lambda: asked("responses", "--streaming"),
        }
    )


def inference_perf(place: Place) -> Outcomes:
    python = python_with("compat-inference-perf", INFERENCE_PERF, version="3.12")

    def completions() -> None:
        lengths = {"min": 16, "max": 64, "mean": 32, "std_dev": 8, "total_count": 10}
        config = {
            "load": {"type": "constant", "stages": [{"rate": 2, "duration": 3}], "num_workers": 1},
            "api": {"type": "completion", "streaming": True},
            "server": {"type": "vllm", "model_name": MODEL, "base_url": place.url},
            "tokenizer": {"pretrained_model_name_or_path": str(TOKENIZER)},
            "data": {
                "type": "random",
                "input_distribution": lengths,
                "output_distribution": lengths | {"min": 8, "max": 16, "mean": 12, "std_dev": 2},
            },
            "storage": {"local_storage": {"path": str(place.folder / "inference-perf")}},
        }
        path = place.folder / "inference-perf.yaml"
        path.write_text(json.dumps(config))  # which is YAML
        place.run([python.with_name("inference-perf"), "--config_file", path])
        (report,) = place.folder.rglob("summary_lifecycle_metrics.json")
        result = json.loads(report.read_text())
        assert result["successes"]["count"] > 0
        assert result["failures"]["count"] == 0

    return outcomes({"completions, streamed": completions})


def lm_eval(place: Place) -> Outcomes:
    program = python_with("compat-lm-eval", LM_EVAL).with_name("lm-eval")
    rows = place.folder / "rows.jsonl"
    words = ("hello", "paris", "tokens", "router")
    rows.write_text("\n".join(json.dumps({"word": w, "choices": [w, "zzz"]}) for w in words))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows)}}}
    task = {**data, "test_split": "test", "doc_to_text": "copy: {{word}}\n", "target_delimiter": ""}
    generate = {"output_type": "generate_until", "doc_to_target": "{{word}}"}
    generate["generation_kwargs"] = {"until": ["\n"], "max_gen_toks": 16}  # type: ignore[assignment]
    choose = {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": 0}
    kinds: Mapping[str, tuple[Mapping[str, Any], str]] = {
        "sluice_generate": (generate, "exact_match"),
        "sluice_choose": (choose, "acc"),
    }
    for name, (own, metric) in kinds.items():
        whole = {"task": name, **task, **own, "metric_list": [{"metric": metric}]}
        (place.folder / f"{name}.yaml").write_text(json.dumps(whole))

    def asked(model: str, path: str, backend: str, name: str, *options: str) -> None:
        out = place.folder / f"{model}-{backend}-{name}"
        tokenizer = "" if backend == "remote" else f",tokenizer={TOKENIZER}"
        arguments = f"model={MODEL},base_url={place.url}{path},tokenizer_backend={backend}"
        command = [program, "run", "--model", model, "--model_args"]
        command += [f"{arguments}{tokenizer},num_concurrent=2,max_retries=1", "--tasks", name]
        command += ["--include_path", place.folder, "--output_path", out, *options]
        place.run(command, {"HF_DATASETS_CACHE": str(place.folder / "datasets")})
        (report,) = out.rglob("results_*.json")
        score = json.loads(report.read_text())["results"][name][f"{kinds[name][1]},none"]
        assert score == 1.0, f"{kinds[name][1]} {score}"

    text, chat = ("local-completions", "/v1/completions"), "local-chat-completions"
    return outcomes(
        {
            "completions, generated": lambda: asked(*text, "huggingface", "sluice_generate"),
            "completions, log-likelihood": lambda: asked(*text, "huggingface", "sluice_choose"),
            "chats, generated": lambda: asked(
                chat,
                "/v1/chat/completions",
                "huggingface",
                "sluice_generate",
                "--apply_chat_template",
            ),
            "tokenizer_backend=remote": lambda: asked(*text, "remote", "sluice_choose"),
        }
    )


def vllm_tests(place: Place) -> Outcomes:
    folder = vllm_code("tests/__init__.py", "tests/entrypoints/")
    command: Sequence[Any] = [python_with("compat-peers", PEERS), STAND_INS, folder, place.url]
    files = [f"tests/entrypoints/{file}" for file in VLLM_TESTS]
    cases: Outcomes = json.loads(place.run([*command, "tests", *files]).splitlines()[-1])
    return {name.removeprefix("tests/entrypoints/"): said for name, said in cases.items()}


def outcomes(cases: Mapping[str, Callable[[], None]]) -> Outcomes:
    """What each said, "" of those that pass."""
    result: Outcomes = {}
    for name, case in cases.items():
        result[name] = ""
        try:
            case()
        except Exception as error:
            result[name] = f"{type(error).__name__}: {error}"[-600:]
    return result
