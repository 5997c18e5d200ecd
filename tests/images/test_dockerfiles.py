"""Rules that every Dockerfile keeps: they run under the restricted pod security standard."""

import fnmatch
import re
from pathlib import Path

import pytest

from e2e.images.catalog import IMAGES, ROOT, copied_files

DOCKERFILES = sorted((ROOT / "images").glob("*.Dockerfile"))
OWN_BASE = [path for path in DOCKERFILES if not IMAGES[path.name.partition(".")[0]].on]
PACKAGE = {
    "engine": "runtime/sluice_runtime",
    "router": "runtime/sluice_router",
    "operator": "operator/sluice_operator",
    "fetch": "runtime/sluice_fetch",
}
BESIDE = {"engine": {"kernels/sluice_kernels"}, "operator": {"runtime/sluice_autoscaler"}}
"""Packages that an image has besides the contract and its own."""


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, the rest), continued lines joined, comments dropped."""
    joined = re.sub(r"\\\n\s*", "", path.read_text())
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def named(path: Path) -> str:
    return path.name.removesuffix(".Dockerfile")


def last_stage(path: Path) -> list[tuple[str, str]]:
    parsed = instructions(path)
    start = max(i for i, (word, _) in enumerate(parsed) if word == "FROM")
    return parsed[start:]


def test_the_catalogue_is_the_folder() -> None:
    plain = [name for name, image in IMAGES.items() if not image.variant_of]
    assert sorted(plain) == sorted(map(named, DOCKERFILES))
    assert {image.dockerfile for image in IMAGES.values()} == {
        str(path.relative_to(ROOT)) for path in DOCKERFILES
    }


@pytest.mark.parametrize("path", OWN_BASE, ids=named)
def test_an_image_runs_as_a_number_that_is_not_root(path: Path) -> None:
    users = [rest for word, rest in last_stage(path) if word == "USER"]
    assert users == ["65532:65532"]


@pytest.mark.parametrize("path", OWN_BASE, ids=named)
def test_an_image_starts_its_own_package_without_a_shell(path: Path) -> None:
    entry = [rest for word, rest in last_stage(path) if word == "ENTRYPOINT"]
    assert entry == [f'["python", "-m", "{Path(PACKAGE[named(path)]).name}"]']


def test_only_the_image_for_tests_pretends_to_have_gpus() -> None:
    having = [path for path in DOCKERFILES if "pretended_accelerator" in path.read_text()]
    assert list(map(named, having)) == ["engine-pretended"]
    assert instructions(having[0])[-1] == (
        "ENTRYPOINT",
        '["python", "-m", "pretended_accelerator"]',
    )


@pytest.mark.parametrize("path", OWN_BASE, ids=named)
def test_code_is_the_last_layer_so_that_it_changes_alone(path: Path) -> None:
    layers = [line for line in last_stage(path) if line[0] in ("COPY", "ADD", "RUN")]
    assert layers[-1] == ("COPY", "--from=code /app /app")
    assert not [rest for _, rest in layers[:-1] if "sluice_" in rest or "code" in rest]


@pytest.mark.parametrize("path", OWN_BASE, ids=named)
def test_an_image_has_the_contract_and_its_own_package_only(path: Path) -> None:
    packages = {
        str(file.relative_to(ROOT).parents[-3])
        for file in copied_files(path, ROOT)
        if file.suffix == ".py" and any(part.startswith("sluice_") for part in file.parts)
    }
    name = named(path)
    assert packages == {"runtime/sluice_contract", PACKAGE[name], *BESIDE.get(name, ())}


@pytest.mark.parametrize("path", OWN_BASE, ids=named)
def test_the_packages_of_an_image_depend_on_no_code(path: Path) -> None:
    parsed = instructions(path)
    starts = [i for i, (word, _) in enumerate(parsed) if word == "FROM"]
    code = next(i for i in starts if parsed[i][1].endswith((" AS code", " AS kernels")))
    before = [rest for word, rest in parsed[:code] if word == "COPY"]
    assert not [rest for rest in before if "sluice_" in rest or "kernels/" in rest]


@pytest.mark.parametrize("path", OWN_BASE, ids=named)
def test_the_base_can_be_chosen(path: Path) -> None:
    parsed = instructions(path)
    assert parsed[0] == ("ARG", "BASE=docker.io/library/python:3.11-slim")
    starts = {rest.split()[0] for word, rest in parsed if word == "FROM"}
    assert starts <= {"${BASE}", "uv", "packages", "scratch"}


@pytest.mark.parametrize("path", OWN_BASE, ids=named)
def test_the_same_first_steps_are_built_once_for_all_images(path: Path) -> None:
    shared = [instructions(one)[:6] for one in OWN_BASE]
    assert instructions(path)[:6] == shared[0]
    assert shared[0][-1][0] == "RUN"


def test_an_image_gets_kernels_and_no_compiler() -> None:
    parsed = instructions(ROOT / "images" / "engine.Dockerfile")
    from_kernels = [rest for word, rest in parsed if word == "COPY" and "--from=kernels" in rest]
    assert from_kernels == ["--from=kernels /built/_native.so /app/sluice_kernels/"]
    assert parsed[[rest for _, rest in parsed].index("packages") :][0] == ("FROM", "packages")
    for_gpus = [rest for word, rest in parsed if word == "COPY" and "--from=gpu-kernels" in rest]
    assert for_gpus == [
        "--from=gpu-kernels /packed/ /",
        "--from=gpu-kernels /built/kernels/sluice_kernels/ /app/sluice_kernels/",
    ]


def test_every_stage_of_the_engine_that_looks_at_the_accelerator_has_the_same_default() -> None:
    parsed = instructions(ROOT / "images" / "engine.Dockerfile")
    for name in ("ACCELERATOR", "ARCHITECTURES", "DTYPES", "HEADS"):
        said = [rest for word, rest in parsed if word == "ARG" and rest.startswith(f"{name}=")]
        assert len(said) >= 2
        assert len(set(said)) == 1


@pytest.mark.parametrize("check", ["check_torch.py", "check_engine.py"])
def test_an_engine_that_does_not_compute_or_compile_is_no_image(check: str) -> None:
    steps = [
        rest for word, rest in instructions(ROOT / "images/engine.Dockerfile") if word == "RUN"
    ]
    assert sum(rest.endswith(f" /opt/venv/bin/python /opt/build/{check}") for rest in steps) == 1


@pytest.mark.parametrize("path", DOCKERFILES, ids=named)
def test_what_is_copied_is_not_ignored(path: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    allowed = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    for file in copied_files(path, ROOT):
        name = str(file.relative_to(ROOT))
        assert any(fnmatch.fnmatch(name, f"{one}*") for one in allowed), name
