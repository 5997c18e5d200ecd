"""flashinfer's modules are built ahead once, found again, and what is missing is named."""

from __future__ import annotations

import importlib.util
import resource
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from sluice_kernels import flashinfer_ahead as ahead
from sluice_kernels.flashinfer_ahead import ACTIVATIONS, Heads, Manifest, Shape, library

SOURCE = Path(__file__).parents[2] / "kernels" / "build_flashinfer.py"
SHARED = ("norm", *ACTIVATIONS)
BF16, F16 = Shape("bfloat16", Heads(128)), Shape("float16", Heads(64))


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_flashinfer", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Compiler:
    """Makes libraries that tell what was built, and fails at one."""

    def __init__(self, scratch: Path, fails_at: int | None = None) -> None:
        self.scratch = scratch
        self.fails_at = fails_at
        self.built: list[tuple[str, tuple[int, ...]]] = []

    def __call__(self, name: str, architectures: tuple[int, ...]) -> Path:
        if len(self.built) == self.fails_at:
            raise RuntimeError("interrupted")
        self.built.append((name, architectures))
        (self.scratch / f"{name}.so").write_text(f"{name} for {architectures}")
        return self.scratch / f"{name}.so"


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "find_compiler", lambda: None)


def test_the_versions_are_those_of_the_lock_file() -> None:
    lock = (SOURCE.parents[1] / "uv.lock").read_text()
    assert f'name = "flashinfer-python"\nversion = "{ahead.VERSION}"\n' in lock
    assert f'name = "nvidia-cuda-runtime"\nversion = "{ahead.CUDA}.' in lock


def test_every_module_is_built_for_the_architectures_that_call_it(builder: ModuleType) -> None:
    wanted = builder.plan([BF16, F16], [80, 90])
    assert {name: found for name, found in wanted.items() if found != (80, 90)} == {
        BF16.prefill_module("fa3"): (90,),
        F16.prefill_module("fa3"): (90,),
    }
    assert len(wanted) == 2 * 3 + len(SHARED)


def test_of_pages_of_8_bits_there_are_modules_for_all_but_fa3(builder: ModuleType) -> None:
    shape = Shape("bfloat16", Heads(128), fp8_pages=True)
    wanted = builder.plan([shape], [80, 90])
    assert set(wanted) == {shape.decode_module(), shape.prefill_module("fa2"), *SHARED}
    assert "dtype_q_bf16_dtype_kv_e4m3_dtype_o_bf16" in shape.decode_module()
    assert ahead.missing_hopper_module(shape, 90) is None
    assert shape in ahead.shapes(["bfloat16"], [Heads(128)])


def test_models_with_windows_need_the_modules_of_both_kinds_of_layers(builder: ModuleType) -> None:
    shape = Shape("bfloat16", Heads.parse("256w"))
    needed = ahead.needed_modules(shape)
    assert set(builder.plan([shape], [90])) == set(needed), "without FA3"
    assert set(needed) - set(ahead.needed_modules(Shape("bfloat16", Heads(256)))) == {
        shape.prefill_module("fa2", windowed=True)
    }
    assert shape in ahead.shapes(["bfloat16"], [Heads(128), Heads.parse("256w")])


@pytest.mark.parametrize("word", ["256x", "256ws", "w", "0", "-64", ""])
def test_heads_of_another_form_are_refused_with_what_is_allowed(
    word: str, builder: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        builder.main([f"--heads={word}"])
    assert capsys.readouterr().err.endswith(
        f"argument --heads: {word} is not allowed; allowed: a head dimension, followed by w if"
        " layers have sliding windows, or s if they have sinks\n"
    )


@pytest.mark.parametrize("windows", [False, True])
def test_models_with_sinks_need_one_module_of_their_own(windows: bool, builder: ModuleType) -> None:
    shape = Shape("bfloat16", Heads(64, windows, sinks=True))
    assert ahead.needed_modules(Shape("bfloat16", Heads.parse("64s"))) == (
        ahead.needed_modules(shape)
    )
    needed = ahead.needed_modules(shape)
    assert set(builder.plan([shape], [90])) == set(needed)
    assert set(needed) == {shape.sink_module(), *SHARED}
    larger = Shape("bfloat16", Heads(128, windows, sinks=True))
    assert shape.sink_module() not in ahead.needed_modules(larger), "a folder holds both"
    assert ahead.missing_hopper_module(shape, 90) is None


def test_a_folder_serves_the_shapes_and_gpus_that_it_was_built_for(
    builder: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "built"
    builder.build_all(folder, builder.plan([BF16], [80, 90]), Compiler(tmp_path))
    for architecture in (80, 86, 89, 90):
        assert ahead.missing_modules(BF16, architecture, folder) == []
    missing = ahead.missing_modules(F16, 80, folder)
    assert missing == [
        f"{F16.decode_module()} (not built ahead)",
        f"{F16.prefill_module('fa2')} (not built ahead)",
    ]
    assert ahead.unusable(missing) == (
        f"flashinfer lacks {F16.decode_module()} (not built ahead) and 1 more,"
        " and there is no nvcc to compile it"
    )
    on_blackwell = ahead.missing_modules(BF16, 100, folder)
    assert f"{BF16.decode_module()} (built for sm_80, sm_90, not sm_100)" in on_blackwell
    assert len(on_blackwell) == 2 + len(SHARED)


@pytest.mark.parametrize("lacking", ACTIVATIONS)
def test_a_folder_without_an_activation_serves_the_models_that_do_not_call_it(
    lacking: str, builder: ModuleType, tmp_path: Path
) -> None:
    folder, modules = tmp_path / "built", builder.plan([BF16], [90])
    del modules[lacking]
    builder.build_all(folder, modules, Compiler(tmp_path))
    for activation in ACTIVATIONS:
        missing = ahead.missing_modules(BF16, 90, folder, [activation])
        assert missing == ([f"{lacking} (not built ahead)"] if activation == lacking else [])
    assert ahead.missing_modules(BF16, 90, folder, []) == []


def test_with_a_compiler_nothing_needs_to_be_built_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = ahead.missing_modules(BF16, 90, tmp_path)
    assert ahead.unusable(missing) is not None
    monkeypatch.setattr(ahead, "find_compiler", lambda: "/usr/local/cuda/bin/nvcc")
    assert ahead.unusable(missing) is None
    assert ahead.unusable([]) is None


def test_a_file_that_is_not_the_one_that_was_built_is_missing(
    builder: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "built"
    builder.build_all(folder, builder.plan([BF16], [90]), Compiler(tmp_path))
    library(folder, "norm").write_text("cut off")
    library(folder, BF16.decode_module()).unlink()
    assert ahead.missing_modules(BF16, 90, folder) == [
        f"{BF16.decode_module()} (not the file that was built)",
        "norm (not the file that was built)",
    ]
    manifest = Manifest.read(folder)
    assert manifest is not None
    Manifest("0.6.12", manifest.modules).write(folder)
    assert ahead.missing_modules(BF16, 90, folder) == [
        f"{folder} was built from flashinfer 0.6.12, not 0.6.13"
    ]


def test_an_interrupted_build_goes_on_where_it_was(builder: ModuleType, tmp_path: Path) -> None:
    folder, wanted = tmp_path / "built", builder.plan([BF16], [90])
    with pytest.raises(RuntimeError, match="interrupted"):
        builder.build_all(folder, wanted, Compiler(tmp_path, fails_at=2))
    assert len(ahead.missing_modules(BF16, 90, folder)) == len(SHARED)
    assert ahead.missing_hopper_module(BF16, 90, folder) == (
        f"{BF16.prefill_module('fa3')} (not built ahead)"
    )
    rest = Compiler(tmp_path)
    builder.build_all(folder, wanted, rest)
    assert rest.built == list(wanted.items())[2:]
    assert rest.built[-1][0] == BF16.prefill_module("fa3"), "the slowest comes last"
    assert ahead.missing_hopper_module(BF16, 90, folder) is None
    assert ahead.missing_hopper_module(BF16, 80, folder) is None
    # More architectures: what is the same for the new ones is left alone.
    more = Compiler(tmp_path)
    builder.build_all(folder, builder.plan([BF16], [80, 90]), more)
    assert BF16.prefill_module("fa3") not in [name for name, _ in more.built]
    assert ahead.missing_modules(BF16, 80, folder) == []


def test_a_build_shows_the_cpu_time_of_the_compilers(
    builder: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seconds say little on a busy machine."""
    used = iter([(10.0, 1.0), (40.0, 3.0)])  # seconds in programs and in the kernel
    usage = SimpleNamespace(
        RUSAGE_CHILDREN=resource.RUSAGE_CHILDREN,
        getrusage=lambda _: SimpleNamespace(
            **dict(zip(("ru_utime", "ru_stime"), next(used), strict=True))
        ),
    )
    monkeypatch.setattr(builder, "resource", usage)
    builder.build_all(tmp_path / "built", {"norm": (90,)}, Compiler(tmp_path))
    assert ", 32 s of CPU time, " in capsys.readouterr().err


def test_without_nvcc_a_build_says_what_to_install(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="flashinfer-build, or set CUDA_HOME"):
        builder.cuda_home(tmp_path)


@pytest.mark.xdist_group("flashinfer")
class TestWithFlashinfer:
    """The library itself, 0.6.13: its names, and where it looks."""

    @pytest.fixture
    def jit_env(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        from flashinfer.jit import core, env

        monkeypatch.setattr(core.current_compilation_context, "TARGET_CUDA_ARCHS", {(9, "0a")})
        for name in ("FLASHINFER_JIT_DIR", "FLASHINFER_GEN_SRC_DIR", "FLASHINFER_AOT_DIR"):
            monkeypatch.setattr(env, name, tmp_path / name.lower())
        return env

    def test_its_modules_have_the_names_that_we_look_for(
        self, builder: ModuleType, jit_env: Any
    ) -> None:
        heads = map(Heads.parse, ("64", "128", "128w", "256w", "64s", "128s"))
        every = builder.shapes(["bfloat16", "float16"], heads)
        made = dict(builder.specs(every))
        assert {*builder.plan(every, [80, 90, 100]), *builder.COMPARED} == set(made)
        assert {name: generate().name for name, generate in made.items()} == {
            name: name for name in made
        }

    @pytest.mark.parametrize("fp8_pages", [False, True])
    def test_its_module_with_sinks_is_the_same_for_layers_with_a_window(
        self, fp8_pages: bool, jit_env: Any
    ) -> None:
        """The flag becomes a constant that `DISPATCH_context` takes and drops."""
        from flashinfer.jit import attention

        generate: Any = attention.gen_customize_batch_prefill_module
        shape = Shape("bfloat16", Heads(64, windows=True, sinks=True), fp8_pages)
        name, *arguments = ahead.sink_arguments(shape)
        flag = "constexpr auto USE_SLIDING_WINDOW = {};\n"
        sources = []
        for windowed in (False, True):
            folder = jit_env.FLASHINFER_GEN_SRC_DIR / f"{name}{windowed}"
            generate("fa2", folder.name, *arguments, use_sliding_window=windowed)
            sources.append({path.name: path.read_text() for path in folder.iterdir()})
            config = sources[-1].pop("batch_prefill_config.inc")
            rest = config.replace(flag.format(str(windowed).lower()), "")
            assert len(rest) < len(config)
            assert rest.count("USE_SLIDING_WINDOW") == 1, "a parameter of the macro, without a use"
            sources[-1]["rest"] = rest
        assert sources[0] == sources[1]

    def test_it_loads_what_was_built_ahead_and_compiles_nothing(
        self, builder: ModuleType, jit_env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "built"
        builder.build_all(folder, builder.plan([BF16], [90]), Compiler(tmp_path))
        monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path))
        monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "")
        monkeypatch.delenv("FLASHINFER_DISABLE_JIT")
        ahead.use_built(folder)
        made = dict(builder.specs([BF16, F16]))
        spec = made[BF16.prefill_module("fa3")]()
        monkeypatch.setattr(type(spec), "load", lambda self, path: path)
        assert spec.build_and_load() == library(folder, spec.name)
        shutil.rmtree(folder / "norm")
        with pytest.raises(RuntimeError, match="JIT compilation is disabled"):
            made["norm"]().build_and_load()

    def test_a_folder_without_a_manifest_is_not_used(
        self, jit_env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ahead, "find_compiler", lambda: "nvcc")
        monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path))
        before = jit_env.FLASHINFER_AOT_DIR
        ahead.use_built(tmp_path)
        assert before == jit_env.FLASHINFER_AOT_DIR
