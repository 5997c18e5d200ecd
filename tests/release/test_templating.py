"""Manifests with places in them become templates that read as YAML does."""

from __future__ import annotations

import pytest

from release.templating import Block, Inline, entry, to_template


def test_places_are_filled_where_they_stand() -> None:
    manifest = {
        "name": Inline("{{ .Release.Name }}"),
        "list": ["a", Block("{{- if .x }}\n- b\n{{- end }}")],
        "labels": {"own": "1"} | entry("{{- toYaml .labels | nindent INDENT }}"),
        "deep": {"er": entry("env:\n  {{- toYaml .env | nindent INDENT+2 }}")},
    }
    assert to_template(manifest) == (
        "name: {{ .Release.Name }}\n"
        "list:\n- a\n{{- if .x }}\n- b\n{{- end }}\n"
        "labels:\n  own: '1'\n  {{- toYaml .labels | nindent 2 }}\n"
        "deep:\n  er:\n    env:\n      {{- toYaml .env | nindent 6 }}\n"
    )


def test_a_block_is_no_value() -> None:
    with pytest.raises(AssertionError, match="a line of its own"):
        to_template({"key": Block("x")})
