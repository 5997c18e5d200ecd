"""Models that must be refused, and the field that the refusal must name."""

from __future__ import annotations

from tests.operator.api.valid_specs import Invalid

INVALID_MODELS: dict[str, Invalid] = {
    "no model": Invalid({"model": None}, "spec.model"),
    "no uri": Invalid({"model": {}}, "spec.model.uri"),
    "empty uri": Invalid({"model": {"uri": ""}}, "spec.model.uri"),
    "unknown scheme": Invalid({"model": {"uri": "ftp://b/m"}}, "spec.model.uri", "hf://org/name"),
    "plain path": Invalid({"model": {"uri": "/models/m"}}, "spec.model.uri", "file:///path"),
    "long part of a path": Invalid(
        {"model": {"uri": "file:///" + 254 * "a"}}, "spec.model.uri", "253"
    ),
    "climbing path": Invalid({"model": {"uri": "pvc://c/../m"}}, "spec.model.uri", "'..'"),
    "an image without a repository": Invalid(
        {"model": {"uri": "oci://r"}}, "spec.model.uri", "oci://"
    ),
    "a digest that is none": Invalid({"model": {"uri": "oci://r/m@sha256:1"}}, "spec.model.uri"),
    "the repository as an alias": Invalid(
        {"model": {"uri": "oci://r/m:1", "aliases": ["m"]}}, "spec.model.aliases"
    ),
    "a long name of an image": Invalid(
        {"model": {"uri": "oci://r" + 253 * "/a" + ":123456"}}, "spec.model.uri", "512"
    ),
    "a revision that reads as an option": Invalid(
        {"model": {"uri": "hf://a/b", "revision": "--cache"}}, "spec.model.revision", "match"
    ),
    "a long name of a claim with adapters": Invalid(
        {
            "model": {
                "uri": "dummy://m",
                "adapters": [
                    {"name": "a", "uri": f"pvc://{254 * 'a'}/a"},
                ],
            }
        },
        "spec.model.adapters[0].uri",
        "253",
    ),
    "adapters of a hub without a cache": Invalid(
        {"model": {"uri": "dummy://m", "adapters": [{"name": "a", "uri": "hf://org/a@v1"}]}},
        "spec.model.cache",
        "hf:// adapters",
    ),
    "a revision of an adapter that reads as an option": Invalid(
        {
            "model": {
                "uri": "dummy://m",
                "cache": {"claim": "c"},
                "adapters": [{"name": "a", "uri": "hf://org/a@--cache"}],
            }
        },
        "spec.model.adapters[0].uri",
        "hf://org/name@revision",
    ),
    "revision of a file": Invalid(
        {"model": {"uri": "file:///m", "revision": "main"}},
        "spec.model.revision",
        "a hub or bucket",
    ),
    "resources of a download that there is none of": Invalid(
        {"model": {"uri": "pvc://c/m", "resources": {"limits": {"cpu": 1}}}},
        "spec.model.resources",
        "hub, bucket or image",
    ),
    "requests of a download above its limits": Invalid(
        {
            "model": {
                "uri": "hf://a/b",
                "resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1024Mi"}},
            }
        },
        "spec.model.resources.requests",
        "at most the limits",
    ),
    "token of a file": Invalid(
        {"model": {"uri": "file:///m", "tokenSecretRef": {"name": "a", "key": "b"}}},
        "spec.model.tokenSecretRef",
        "a hub or bucket",
    ),
    "an alias twice": Invalid(
        {"model": {"uri": "file:///m", "aliases": ["a", "a"]}}, "spec.model.aliases[1]", '"a"'
    ),
    "the name as an alias": Invalid(
        {"model": {"uri": "file:///m", "name": "a", "aliases": ["a"]}}, "spec.model.aliases"
    ),
    "the name that the URI gives as an alias": Invalid(
        {"model": {"uri": "file:///path/m/", "aliases": ["m"]}}, "spec.model.aliases"
    ),
    "a text as a number": Invalid({"model": {"uri": "dummy://a", "name": 5}}, "spec.model.name"),
    "null that is required": Invalid({"model": {"uri": None}}, "spec.model.uri"),
}
