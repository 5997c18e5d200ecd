"""Chat templates from every place models keep them, in a sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sluice_runtime.errors import InvalidRequestError, ModelLoadError
from sluice_runtime.model.files import ModelFiles, resolve
from sluice_runtime.model.tokenizer import load_chat_template

MESSAGES = [{"role": "user", "content": "hi <b>"}]
NOW = 1.7e9
"""In November 2023."""


def model(folder: Path, config: dict[str, Any] | None = None, jinja: str = "") -> ModelFiles:
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if jinja:
        (folder / "chat_template.jinja").write_text(jinja)
    return ModelFiles(str(folder), folder, {}, {})


def rendered(files: ModelFiles) -> str:
    template = load_chat_template(files)
    assert template is not None
    return template.render(MESSAGES, unix_seconds=NOW)


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert load_chat_template(model(tmp_path)) is None
    assert load_chat_template(model(tmp_path, {})) is None


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": "{{ messages[0].content }}!"},
        {"chat_template": [{"name": "default", "template": "{{ messages[0].content }}!"}]},
        {
            "chat_template": [
                {"name": "tool_use", "template": "x"},
                {"name": "default", "template": "{{ messages[0].content }}!"},
            ]
        },
        {"chat_template": [{"name": "only", "template": "{{ messages[0].content }}!"}]},
    ],
)
def test_tokenizer_config_has_one_or_several(tmp_path: Path, config: dict[str, Any]) -> None:
    assert rendered(model(tmp_path, config)) == "hi <b>!"


def test_chat_template_jinja_has_precedence(tmp_path: Path) -> None:
    assert rendered(model(tmp_path, {"chat_template": "old"}, "new")) == "new"


def test_what_templates_may_use(tmp_path: Path) -> None:
    source = (
        "{{ bos_token }}{{ eos_token }}\n"
        "{%- for m in messages %}\n"
        "    {%- if loop.first %}[{{ m['role'] | upper }}]{% endif %}\n"
        "    {%- generation %}{{ m | tojson }}{% endgeneration %}\n"
        "    {%- break %}\n"
        "{%- endfor %}"
        "{% if add_generation_prompt %}{{ strftime_now('%Y') }}{% endif %}"
    )
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    assert rendered(model(tmp_path, config, source)) == (
        '<s></s>[USER]{"role": "user", "content": "hi <b>"}2023'
    )


def test_a_template_may_refuse_a_conversation(tmp_path: Path) -> None:
    template = load_chat_template(model(tmp_path, jinja="{{ raise_exception('system first') }}"))
    assert template is not None
    with pytest.raises(InvalidRequestError, match="system first") as refused:
        template.render(MESSAGES, unix_seconds=NOW)
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{{ undefined_thing.attribute }}",
    ],
)
def test_the_sandbox_holds(tmp_path: Path, source: str) -> None:
    template = load_chat_template(model(tmp_path, jinja=source))
    assert template is not None
    with pytest.raises(InvalidRequestError):
        template.render(MESSAGES, unix_seconds=NOW)


def test_no_file_can_be_included(tmp_path: Path) -> None:
    template = load_chat_template(model(tmp_path, jinja="{% include 'config.json' %}"))
    assert template is not None
    with pytest.raises(InvalidRequestError):
        template.render(MESSAGES, unix_seconds=NOW)


@pytest.mark.parametrize(
    ("config", "jinja"),
    [(None, "{% if %}"), ({"chat_template": 5}, ""), ({"chat_template": [{"name": "x"}]}, "")],
)
def test_a_damaged_template_names_its_file(
    tmp_path: Path, config: dict[str, Any] | None, jinja: str
) -> None:
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        load_chat_template(model(tmp_path, config, jinja))


def test_dummy_models_have_one() -> None:
    template = load_chat_template(resolve("dummy://qwen3-tiny"))
    assert template is not None
    assert not template.shows_tools
    assert rendered(resolve("dummy://qwen3-tiny")) == "user: hi <b>\nassistant: "


THINKING = (
    "{%- set shown = namespace(last=messages[-1]) %}{{ shown.last.content }}"
    "{%- if tools %}tools{% endif %}"
    "{%- if not style is defined %}{% set style = 'plain' %}{% endif %}"
    " {{ style }}{% if enable_thinking is defined and not enable_thinking %} at once{% endif %}"
)


def test_a_request_gives_values_for_what_the_template_reads(tmp_path: Path) -> None:
    template = load_chat_template(model(tmp_path, jinja=THINKING))
    assert template is not None
    assert template.options == {"enable_thinking", "style"}
    assert template.shows_tools
    assert template.render(MESSAGES, unix_seconds=NOW) == "hi <b> plain"
    assert (
        template.render(MESSAGES, None, {"enable_thinking": False}, unix_seconds=NOW)
        == "hi <b> plain at once"
    )
    assert template.render(MESSAGES, None, {"style": "terse"}, unix_seconds=NOW) == "hi <b> terse"


@pytest.mark.parametrize("name", ["thinking", "range", "self"])
def test_options_that_the_template_does_not_read_are_left_out(tmp_path: Path, name: str) -> None:
    template = load_chat_template(model(tmp_path, jinja=THINKING))
    assert template is not None
    assert template.unread({name: 1, "style": "terse"}) == [name]
    assert (
        template.render(MESSAGES, None, {name: 1, "style": "terse"}, unix_seconds=NOW)
        == "hi <b> terse"
    )


def test_a_message_that_is_continued_ends_the_prompt(tmp_path: Path) -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
    template = load_chat_template(model(tmp_path, jinja=source))
    assert template is not None
    messages = [{"role": "user", "content": "a "}, {"role": "assistant", "content": " a "}]
    prompt = template.render(messages, unix_seconds=NOW, continues_final=True)
    assert prompt == "<user>a</><assistant>a "
    hidden = load_chat_template(model(tmp_path, jinja="{{ messages[0].content }}"))
    assert hidden is not None
    with pytest.raises(InvalidRequestError, match="does not show the last message"):
        hidden.render(messages, unix_seconds=NOW, continues_final=True)


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "strftime_now"])
def test_options_that_the_server_sets_are_refused(tmp_path: Path, name: str) -> None:
    template = load_chat_template(model(tmp_path, jinja=THINKING))
    assert template is not None
    with pytest.raises(InvalidRequestError, match=f'"{name}".*: enable_thinking, style') as refused:
        template.render(MESSAGES, None, {name: 1}, unix_seconds=NOW)
    assert refused.value.param == "chat_template_kwargs"
