"""The stand-ins for CUDA libraries, on a torch of three toy libraries."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from images.slim_torch import slim
from images.stand_ins import SlimmingError, Symbol, c_source, dynamic_symbols

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in ("gcc", "nm", "readelf", "strip")),
        reason="needs a C compiler and binutils",
    ),
]

CUDART = """
int cudaGetDeviceCount(int *count) { return 0; }
int cudaMalloc(void **target, long size) { return 0; }
"""
CUFILE = "int cuFileRead(void) { return 1; }"
TORCH_CUDA = """
int launch(void) { return 1; }
int never_wanted(void) { return 1; }
const void *type[2] __asm__("_ZTI5Graph") = {0, "real"};
const void *virtuals[4] __asm__("_ZTV5Graph") = {0, 0, launch, launch};
"""
TORCH_PYTHON = """
int cudaGetDeviceCount(int *); int cudaMalloc(void **, long); int cuFileRead(void);
int launch(void);
extern const char *type[2] __asm__("_ZTI5Graph");
extern void *virtuals[4] __asm__("_ZTV5Graph");
int devices(void) { int count; return cudaGetDeviceCount(&count); }
int allocate(void) { return cudaMalloc(0, 1); }
int read_file(void) { return cuFileRead(); }
int run(void) { return launch(); }
int run_virtual(void) { return ((int (*)(void))virtuals[2])(); }
const char *type_name(void) { return type[1]; }
"""
CALL = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
function = library[sys.argv[2]]
function.restype = ctypes.c_char_p if sys.argv[2] == "type_name" else ctypes.c_int
print(function())
"""


def compile_library(folder: Path, soname: str, source: str, *options: str) -> None:
    file = folder / f"{soname}.c"
    file.write_text(source)
    words = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*words, "-o", folder / soname, file, *options], check=True)
    file.unlink()


@pytest.fixture(scope="module")
def site_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy torch, slimmed; the NVIDIA libraries it was linked with are gone."""
    site = tmp_path_factory.mktemp("site")
    torch = site / "torch" / "lib"
    torch.mkdir(parents=True)
    (torch.parent / "include").mkdir()
    versions = site / "cudart.map"
    versions.write_text("libcudart.so.13 { global: *; };")
    cuda = ["libcudart.so.13", "libcufile.so.0"]
    compile_library(torch, cuda[0], CUDART, f"-Wl,--version-script={versions}")
    compile_library(torch, cuda[1], CUFILE)
    compile_library(torch, "libtorch_cuda.so", TORCH_CUDA)
    linked = [f"-L{torch}", *(f"-l:{name}" for name in (*cuda, "libtorch_cuda.so"))]
    compile_library(
        torch,
        "libtorch_python.so",
        TORCH_PYTHON,
        "-Wl,--no-as-needed",
        *linked,
        "-l:libstdc++.so.6",
    )
    for name in cuda:
        (torch / name).unlink()
    assert slim(site)
    return site


def call(site_packages: Path, function: str) -> subprocess.CompletedProcess[str]:
    library = site_packages / "torch" / "lib" / "libtorch_python.so"
    words = [sys.executable, "-c", CALL, str(library), function]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_there_is_no_device(site_packages: Path) -> None:
    assert call(site_packages, "devices").stdout == "100\n"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("allocate", "cudaMalloc was called"),
        ("read_file", "cuFileRead was called"),
        ("run", "launch was called"),
        ("run_virtual", "a virtual function of code left out was called"),
    ],
)
def test_what_needs_a_device_says_its_name_and_aborts(
    site_packages: Path, function: str, said: str
) -> None:
    done = call(site_packages, function)
    assert done.returncode == -signal.SIGABRT
    assert done.stderr.startswith(said)


def test_a_type_info_carries_its_name(site_packages: Path) -> None:
    assert call(site_packages, "type_name").stdout == "b'5Graph'\n"


def test_stand_ins_have_the_versions_that_are_asked_for_and_nothing_else(
    site_packages: Path,
) -> None:
    folder = site_packages / "torch" / "lib"
    cudart = {(s.name, s.version) for s in dynamic_symbols(folder / "libcudart.so.13")}
    assert ("cudaMalloc", "libcudart.so.13") in cudart
    replaced = {s.name for s in dynamic_symbols(folder / "libtorch_cuda.so")}
    assert "launch" in replaced
    assert "never_wanted" not in replaced


def test_what_a_process_never_reads_is_gone(site_packages: Path) -> None:
    assert not (site_packages / "torch" / "include").exists()


def test_a_cpu_build_is_left_alone(tmp_path: Path) -> None:
    library = tmp_path / "torch" / "lib" / "libtorch_cpu.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"as it was")
    assert not slim(tmp_path)
    assert library.read_bytes() == b"as it was"


def test_data_without_a_stand_in_is_refused_by_name() -> None:
    with pytest.raises(SlimmingError, match="data symbol global_table"):
        c_source([Symbol("global_table", "", "D", 64)], {})
