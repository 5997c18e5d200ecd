"""Admission's own errors refuse nothing, and a certificate without its key is not taken."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
from sluice_operator.clock import SystemClock
from sluice_operator.kube.kinds import Manifest
from sluice_operator.process.admission import Admission, Endpoint, usable_pair
from sluice_operator.service.resolve.spec_errors import SpecErrors, spec_errors

from e2e.cluster.bare.certs import create_authority
from tests.operator.examples import IMAGES, service


def admission(errors: SpecErrors) -> Admission:
    return Admission(Endpoint("127.0.0.1", 0, Path("/nowhere")), errors, SystemClock())


def test_each_finding_is_a_line() -> None:
    bad = service({"engine": {"tensorParallelSize": 2}, "slo": {"percentile": 90}})
    lines = admission(partial(spec_errors, IMAGES)).review(None, bad)
    fields = ["spec.slo", "spec.engine.tensorParallelSize"]
    assert [line.partition(": ")[0] for line in lines] == fields


def test_a_defect_refuses_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fails(item: Manifest) -> tuple[()]:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        assert admission(fails).review(None, service()) == ()
    assert "admission failed" in caplog.text


def test_a_pair_is_taken_once_it_belongs_together(tmp_path: Path) -> None:
    one, other = (create_authority(tmp_path / name, name) for name in ("one", "other"))
    folder = tmp_path / "mounted"
    folder.mkdir()
    assert usable_pair(folder) is None
    (folder / "tls.crt").write_bytes(one.certificate.read_bytes())
    assert usable_pair(folder) is None, "without a key"
    (folder / "tls.key").write_bytes(one.key.read_bytes())
    first = usable_pair(folder)
    assert first is not None
    assert usable_pair(folder, first) is None, "nothing else"
    (folder / "tls.key").write_bytes(other.key.read_bytes())
    (folder / "tls.crt").write_bytes(other.certificate.read_bytes()[:100])
    assert usable_pair(folder, first) is None, "half written"
    (folder / "tls.crt").write_bytes(other.certificate.read_bytes())
    assert usable_pair(folder, first) not in (None, first)


def test_files_of_a_secret_are_read_from_one_version_of_it(tmp_path: Path) -> None:
    made = create_authority(tmp_path / "pki", "one")
    version = tmp_path / "..2026"
    version.mkdir()
    (version / "tls.crt").write_bytes(made.certificate.read_bytes())
    (version / "tls.key").write_bytes(made.key.read_bytes())
    (tmp_path / "..data").symlink_to(version.name)
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(Path("..data", name))
    found = usable_pair(tmp_path)
    assert found is not None
    assert found.folder == version
