"""What is left of Mooncake in an image, on a toy of it."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from images.slim_mooncake import slim
from images.stand_ins import SlimmingError

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in ("gcc", "nm", "readelf")),
        reason="needs a C compiler and binutils",
    ),
]

LIBRARIES = {
    "libdeep-1.so": "int deep(void) { return 7; }",
    "libglog-1.so": "int deep(void); int near(void) { return deep(); }",
    "libetcd_wrapper.so": "int NewEtcdClient(void) { return 1; }",
    "libcurl.so.4": "int curl_easy_init(void) { return 1; }",
}
ENGINE = """
int near(void); int NewEtcdClient(void); int curl_easy_init(void);
int transfer(void) { return near(); }
int ask_etcd(void) { return NewEtcdClient(); }
int ask_http(void) { return curl_easy_init(); }
"""
CALL = """
import ctypes, mooncake
print(ctypes.CDLL(mooncake.__path__[0] + "/engine.so").{function}())
"""
LIBS = "mooncake_transfer_engine_toy.libs"


def compile_library(target: Path, source: str, linked_to: list[Path]) -> None:
    file = target.with_suffix(".c")
    file.write_text(source)
    rpath = f"-Wl,--disable-new-dtags,-rpath,$ORIGIN:$ORIGIN/../{LIBS}"
    words = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{target.name}", rpath]
    subprocess.run([*words, "-Wl,--no-as-needed", "-o", target, file, *linked_to], check=True)
    file.unlink()


@pytest.fixture(scope="module")
def site_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy Mooncake, slimmed; libcurl, which is the system's, is not there."""
    site = tmp_path_factory.mktemp("site")
    package, libs = site / "mooncake", site / LIBS
    (package / "tools").mkdir(parents=True)
    libs.mkdir()
    paths = {name: libs / name for name in LIBRARIES}
    paths["libetcd_wrapper.so"] = package / "libetcd_wrapper.so"
    compile_library(paths["libdeep-1.so"], LIBRARIES["libdeep-1.so"], [])
    compile_library(paths["libglog-1.so"], LIBRARIES["libglog-1.so"], [paths["libdeep-1.so"]])
    for name in ("libetcd_wrapper.so", "libcurl.so.4"):
        compile_library(paths[name], LIBRARIES[name], [])
    direct = [path for name, path in paths.items() if name != "libdeep-1.so"]
    compile_library(package / "engine.so", ENGINE, direct)
    compile_library(package / "store.so", "int store(void) { return 1; }", [])
    paths["libcurl.so.4"].unlink()
    (package / "mooncake_master").write_text("a server")
    (package / "__init__.py").write_text("import mooncake.store")
    slim(site)
    return site


def call(site_packages: Path, function: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", CALL.format(function=function)]
    environment = {"PYTHONPATH": str(site_packages), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)


def test_the_engine_works_with_all_it_is_linked_to(site_packages: Path) -> None:
    assert call(site_packages, "transfer").stdout == "7\n"


@pytest.mark.parametrize(
    ("function", "missing"), [("ask_etcd", "NewEtcdClient"), ("ask_http", "curl_easy_init")]
)
def test_a_client_of_metadata_servers_says_its_name_and_aborts(
    site_packages: Path, function: str, missing: str
) -> None:
    done = call(site_packages, function)
    assert done.returncode == -signal.SIGABRT
    assert done.stderr.startswith(f"{missing} was called")


def test_nothing_else_is_left(site_packages: Path) -> None:
    left = {str(path.relative_to(site_packages)) for path in site_packages.glob("*/*")}
    package = ("__init__.py", "engine.so", "libcurl.so.4", "libetcd_wrapper.so")
    libraries = {f"{LIBS}/{name}" for name in ("libdeep-1.so", "libglog-1.so")}
    assert left == {f"mooncake/{name}" for name in package} | libraries


def test_an_image_without_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SlimmingError, match=r"mooncake/engine\.so is not there"):
        slim(tmp_path)
