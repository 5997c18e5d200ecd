"""Chat templates from every place models keep them, in a sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sluice_runtime.errors import InvalidRequestError, ModelLoadError, TemplateFailedError
from sluice_runtime.model.chat_template import load_chat_template
from sluice_runtime.model.files import ModelFiles, resolve
from sluice_runtime.server.tools.formats import HERMES, tool_format_of

from tests.examples import examples

# One worker imports transformers, and no other.
pytestmark = pytest.mark.xdist_group("transformers")

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
    with pytest.raises(TemplateFailedError):
        template.render(MESSAGES, unix_seconds=NOW)


def test_no_file_can_be_included(tmp_path: Path) -> None:
    template = load_chat_template(model(tmp_path, jinja="{% include 'config.json' %}"))
    assert template is not None
    with pytest.raises(TemplateFailedError):
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


TOOL_USE = {"name": "tool_use", "template": "{{ tools[0].function.name }} <tool_call>"}
DEFAULT = {"name": "default", "template": "{{ messages[0].content }}{{ tools }}"}
TOOLS = [{"type": "function", "function": {"name": "weather"}}]


def named_templates(folder: Path, kept: str) -> ModelFiles:
    """A model with two templates, in one of the ways that models keep them."""
    if kept == "list":
        return model(folder, {"chat_template": [DEFAULT, TOOL_USE]})
    if kept == "processor":
        (folder / "chat_template.json").write_text(
            json.dumps({"chat_template": [DEFAULT, TOOL_USE]})
        )
        return model(folder, {})
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TOOL_USE["template"])
    return model(folder, {"chat_template": "old"}, DEFAULT["template"])


@pytest.mark.parametrize("kept", ["list", "folder", "processor"])
def test_a_template_for_tools_shows_conversations_with_tools(tmp_path: Path, kept: str) -> None:
    template = load_chat_template(named_templates(tmp_path, kept))
    assert template is not None
    alone, with_tools = (template.chosen(with_tools=tools) for tools in (False, True))
    assert alone.render(MESSAGES, unix_seconds=NOW) == "hi <b>None"
    assert with_tools.render(MESSAGES, TOOLS, unix_seconds=NOW) == "weather <tool_call>"
    assert tool_format_of(with_tools.source) is HERMES
    assert tool_format_of(alone.source) is None


def test_tokenizer_config_has_precedence_over_a_processor_s_template(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "processor's"}))
    assert rendered(model(tmp_path, {})) == "processor's"
    assert rendered(model(tmp_path, {"chat_template": "own"})) == "own"


TOJSON = (
    "", "(ensure_ascii=False)", "(ensure_ascii=True)", "(False)", "(True, 2)", "(false, 4)",
    "(indent=4, ensure_ascii=False)", "(indent='--')", "(separators=(',', ':'))",
    "(sort_keys=True)", "(True, none, (', ', '= '), true)", "(indent=2, sort_keys=true)",
)  # fmt: skip
SNIPPETS = (
    *(f"{{{{ value | tojson{arguments} }}}}" for arguments in TOJSON),
    "{{ messages | tojson }}{{ messages[0] | tojson | length }}",
    "{{ '<&>' }}{{ '<&>' | e }}{{ messages[0].content | upper | trim | replace('A', 'b') }}",
    "{{ undefined_thing }}|{{ undefined_thing is defined }}|{{ undefined_thing or 'x' }}",
    "{{ tools is none }}{{ tools is defined }}{{ documents is none }}{{ documents is defined }}",
    "{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}{{ image_token }}",
    "{% set n = namespace(a=1, b='x') %}{% for m in messages %}{% set n.a = n.a + 1 %}"
    "{% endfor %}{{ n.a }}{{ n.b }}",
    "{% set n = dict(a=1) %}{{ n.a }}{{ dict.fromkeys('ab', 1) }}{{ dict([('x', 2)]) | tojson }}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}"
    "{% if i == 5 %}{% break %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% set seen = 1 %}{% endgeneration %}"
    "{{ seen is defined }}{{ loop.index }}{% endfor %}",
    "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "  {% if true %}\n  a\n  {% endif %}\n b\n{# c #}\n  {{ 'd' }}\n",
    "{%- if true -%} a {%- endif %} b\n\n",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ strftime_now('%Y') | length }}{% endmacro %}{{ f(1) }}",
    "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}{{ messages[0].absent }}",
    "{{ value.items() | list }}{{ value | dictsort }}{{ value.get('n') }}{{ value | length }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('/') }}",
    "{{ messages[::-1] | length }}{{ messages[-1].content[:2] }}{{ 'a,b'.split(',') | last }}",
    "{{ '%05.1f' % 3.14159 }}{{ 7 // 2 }}{{ 2 ** 5 }}{{ [1] + [2] }}{{ 'a' ~ 1 }}{{ 'a' 'b' }}",
    "{{ value is mapping }}{{ value is iterable }}{{ 'a' is string }}{{ 1 is number }}",
    "{{ add_generation_prompt }}{{ enable_thinking is defined }}{{ lipsum is defined }}",
)  # fmt: skip
FAILING = (
    "{{ raise_exception('no') }}", "{{ undefined_thing | tojson }}", "{{ undefined_thing.a }}",
    "{{ value | tojson(1, 2, 3, 4, 5) }}", "{{ value | tojson(unknown=1) }}", "{{ 1 + 'a' }}",
    "{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ 1 / 0 }}",
    "{% set n = namespace(_a=1) %}", "{% set n = namespace() %}{% set n._a = 1 %}{{ n._a }}",
    "{{ value | nothing }}", "{% include 'x' %}", "{{ dict.mro() }}", "{{ range(10 ** 9) }}",
)  # fmt: skip
VALUE = {
    "n": [1, 2.5, None, True, {"z": "é", "a": "<b>&'\"\n"}],
    "b": "日本語 \u2028 </script>",
    "a": {"y": {}, "x": []},
}
TRANSFORMERS_MESSAGES = [
    {"role": "user", "content": "hi <b> é", "reasoning_content": "why"},
    {"role": "assistant", "content": " yo "},
]


def of_transformers(source: str, **variables: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered: Any = render_jinja_template(
        [TRANSFORMERS_MESSAGES], chat_template=source, add_generation_prompt=True, **variables
    )
    return str(rendered[0][0])


def ours(folder: Path, source: str, value: object) -> str:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    files = model(folder, {**config, "extra_special_tokens": {"image_token": "<i>"}}, source)
    template = load_chat_template(files)
    assert template is not None
    return template.render(TRANSFORMERS_MESSAGES, None, {"value": value}, unix_seconds=NOW)


@pytest.mark.parametrize("source", SNIPPETS)
def test_a_template_is_evaluated_as_transformers_does(tmp_path: Path, source: str) -> None:
    special = {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<i>"}
    assert ours(tmp_path, source, VALUE) == of_transformers(source, value=VALUE, **special)


@pytest.mark.parametrize("source", FAILING)
def test_what_fails_with_transformers_fails_here(tmp_path: Path, source: str) -> None:
    failed = False
    try:
        of_transformers(source, value=VALUE)
    except Exception:
        failed = True
    assert failed
    with pytest.raises((InvalidRequestError, TemplateFailedError, ModelLoadError)):
        ours(tmp_path, source, VALUE)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    LEAVES,
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part, max_size=3)
    ),
    max_leaves=8,
)


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=VALUES,
    ensure_ascii=st.booleans(),
    indent=st.none() | st.integers(0, 4) | st.sampled_from(["", "\t"]),
    separators=st.none() | st.just((",", ":")),
    sort_keys=st.booleans(),
)
def test_tojson_is_transformers_for_any_value(tmp_path: Path, value: Any, **options: Any) -> None:
    named = ", ".join(f"{name}={option!r}" for name, option in options.items())
    positional = ", ".join(map(repr, options.values()))
    source = f"{{{{ value | tojson({named}) }}}}{{{{ value | tojson({positional}) }}}}"
    assert ours(tmp_path, source, value) == of_transformers(source, value=value)


@pytest.mark.parametrize(
    "source", ["{{ 1 | tojson(unknown=1) }}", "{{ undefined_thing | tojson }}", "{{ 1 / 0 }}"]
)
def test_a_template_that_fails_is_no_mistake_of_the_client(tmp_path: Path, source: str) -> None:
    template = load_chat_template(model(tmp_path, jinja=source + "{{ style }}"))
    assert template is not None
    for options in (None, {"style": 1}):
        with pytest.raises(TemplateFailedError, match="chat template fails"):
            template.render(MESSAGES, None, options, unix_seconds=NOW)


def test_an_option_with_which_a_template_fails_is_named(tmp_path: Path) -> None:
    template = load_chat_template(model(tmp_path, jinja="{{ 'a' + (style or 'b') }}"))
    assert template is not None
    with pytest.raises(InvalidRequestError, match=r"chat_template_kwargs: .* fails") as refused:
        template.render(MESSAGES, None, {"style": 5}, unix_seconds=NOW)
    assert refused.value.param == "chat_template_kwargs"


SINGLE = (
    "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call at a time') }}{% endif %}{{ m.content }}{% endfor %}"
)
NO_ROLE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{% endfor %}"
)


def test_a_template_is_tried_for_what_it_takes(tmp_path: Path) -> None:
    for source, single, shows in (
        (SINGLE, True, False),
        (NO_ROLE, False, False),
        ("{{ tools | tojson(indent=4, ensure_ascii=False) }}", False, True),
        ("{{ tools and 'tools' }}", False, False),
    ):
        template = load_chat_template(model(tmp_path, jinja=source))
        assert template is not None
        assert (template.takes_one_call_a_turn, template.shows_tools) == (single, shows)
