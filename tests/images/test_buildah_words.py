"""What a build is told: nothing of this machine may end up in the image."""

from pathlib import Path

import pytest

from e2e.images.base import recipe_hash, registry_answers
from e2e.images.buildah import ISOLATED, Buildah, Downloads, build_words
from e2e.images.builder import ca_bundle


def words(bundle: Path | None) -> list[str]:
    downloads = Downloads(uv_cache=Path("/cache/uv"), ca_bundle=bundle)
    return build_words(
        Path("a.Dockerfile"), Path("/tree"), "a:1", {"BASE": "b:1"}, {"version": "1"}, downloads
    )


def test_a_build_gets_its_arguments_cache_and_context() -> None:
    told = words(None)
    assert {"--build-arg=BASE=b:1", "--label=version=1"} <= set(told)
    assert "--volume=/cache/uv:/var/cache/host-uv" in told
    assert told[-1] == "/tree"
    assert not [word for word in told if word.startswith("--secret")]


def test_certificates_are_a_secret_and_no_layer() -> None:
    assert "--secret=id=ca-bundle,src=/etc/ca.pem" in words(Path("/etc/ca.pem"))


def test_certificates_are_those_the_environment_names(tmp_path: Path) -> None:
    own = tmp_path / "own.pem"
    own.write_text("certificates")
    assert ca_bundle({"SSL_CERT_FILE": str(own)}) == own
    assert ca_bundle({"SSL_CERT_FILE": str(tmp_path / "missing.pem")}) != tmp_path / "missing.pem"


def test_every_command_runs_in_namespaces_that_end_with_it(tmp_path: Path) -> None:
    argv = Buildah(tmp_path).argv("images")
    assert argv[: len(ISOLATED)] == list(ISOLATED)
    assert {"--mount", "--pid", "--kill-child=KILL"} <= set(argv)
    assert argv[-1] == "images"
    assert str(tmp_path / "store") in argv


def test_the_recipe_of_the_base_names_it() -> None:
    assert len(recipe_hash()) == 12


def test_a_registry_that_cannot_be_reached_does_not_answer() -> None:
    assert not registry_answers("http://127.0.0.1:9/v2/")


@pytest.mark.parametrize("status", [401, 403])
def test_a_registry_answers_when_it_asks_who_we_are(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import urllib.error
    from email.message import Message

    def refuse(url: str, timeout: float) -> None:
        raise urllib.error.HTTPError(url, status, "", Message(), None)

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    assert registry_answers() == (status == 401)
