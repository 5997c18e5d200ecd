"""`.ci/run` prints the machine, runs every stage, and once more what failed of one."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[1]
STAGES = """
lint types imports test-node test-stories:
	@echo $@ is run
unit test-process:
	{python} -m pytest -q -n 2 --dist loadgroup $(OF_STAGE) test_$@.py
test-apiserver:
	@exit {status}
"""
TESTS = """
from pathlib import Path
import pytest

def once(name):
    path = Path(name)
    existed = path.exists()
    path.touch()
    return existed

def test_right(): pass
@pytest.mark.xdist_group("a group")
@pytest.mark.parametrize("text", ["it's [a] b*", 'say "no"'])
def test_late(text): assert once(text[:3])
"""


@pytest.mark.parametrize("broken", [False, True])
def test_what_fails_once_is_told_and_what_fails_twice_fails(tmp_path: Path, broken: bool) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    text = (ROOT / "Makefile").read_text()
    kept = [line for line in text.splitlines() if line.startswith(("RESULTS ", "OF_STAGE "))]
    stages = STAGES.format(python=sys.executable, status=3 if broken else 0)
    (tmp_path / "Makefile").write_text("\n".join(kept) + stages)
    (tmp_path / "test_unit.py").write_text(TESTS)
    wrong = "def test_wrong(): assert False\n" * broken
    (tmp_path / "test_test-process.py").write_text("def test_right(): pass\n" + wrong)
    ran = subprocess.run(
        ["bash", ".ci/run"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if "PYTEST" not in name},
        capture_output=True,
        text=True,
        check=False,
    )
    machine, _, _ = ran.stdout.partition("\n")
    assert machine.startswith(f"Machine: {_processor()}, ")
    assert f", {os.cpu_count()} processors, " in machine
    assert machine.endswith(" GiB")
    _, _, end = ran.stdout.partition("test-stories is run\n")
    lines = end.splitlines()
    assert [line for line in lines if line.startswith("FLAKY ")] == [
        "FLAKY test_unit.py::test_late[it's [a] b*]@a group",
        r"FLAKY test_unit.py::test_late[say \"no\"]@a group",
    ]
    assert [line.removeprefix("FAILED ") for line in lines if line.startswith("FAILED ")] == (
        ["test-process", "test_test-process.py::test_wrong", "test-apiserver"] * broken
    )
    assert (ran.returncode, lines[-1] == "All stages passed.") == (int(broken), not broken)
    assert {path.name for path in (tmp_path / ".cache" / "stages").glob("*.xml")} >= {
        "unit.xml",
        "unit1.xml",
        "test-process.xml",
    }


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text()
    _, found, rest = text.partition("model name")
    return rest.partition(": ")[2].partition("\n")[0] if found else platform.machine()
