"""Chat templates come from strangers: none takes all memory or time, and honest ones write what they do elsewhere."""

from __future__ import annotations

import tracemalloc

import pytest

from copyspec.text.chat import ChatError, render
from tests.helpers.tiny import tiny_tokenizer

CHAT = [{"role": "user", "content": "Hello"}]

AMPLIFYING = {
    "list that is printed": "{% set x = 'a' * 400000 %}{{ [x] * 200 }}",
    "list that is joined": "{% set x = 'a' * 400000 %}{{ '' ~ ([x] * 200) }}",
    "list of lists": "{% set x = 'a' * 100 %}" + "{% set x = [x, x] %}" * 19 + "{{ x }}",
    "mapping of mappings": "{% set x = 'a' * 100 %}" + "{% set x = {'a': x, 'b': x} %}" * 19 + "{{ x }}",
    "tuple of tuples": "{% set x = 'a' * 100 %}" + "{% set x = (x, x) %}" * 19 + "{{ x|string }}",
    "namespaces": "{% set n = namespace(x='a' * 400000) %}{{ [n] * 200 }}",
    "macro": "{% macro f() %}{{ kwargs|tojson }}{% endmacro %}{% set x = 'a' * 400000 %}"
    "{{ f(" + ", ".join(f"a{i}=x" for i in range(200)) + ") }}",
    "%": "{{ ('%(a)s' * 2000) % {'a': 'x' * 40000} }}",
    "% with widths": "{{ ('%(a)9999d' * 9000) % {'a': 1} }}",
    "format": "{{ ('{0}' * 2000).format(['a' * 40000]) }}",
    "format filter": "{{ ['%(a)s' * 2000]|format(a='x' * 40000) }}",
    "translate": "{{ ('a' * 20000).translate({97: 'b' * 5000}) }}",
    "join of characters": "{{ ('a' * 20000)|join('b' * 5000) }}",
    "join of a range": "{{ range(20000)|join('b' * 5000) }}",
    "join method": "{{ ('b' * 5000).join('a' * 20000) }}",
    "replace in a list": "{{ (['a'] * 20000)|replace('a', 'b' * 5000) }}",
    "indent": "{{ ('\n' * 200000)|indent(900, blank=true) }}",
    "tojson": "{{ (['a' * 5000] * 20000)|tojson }}",
    "tojson, indented": "{{ ([0] * 20000)|tojson(indent='x' * 5000) }}",
    "bytes": "{{ (1).to_bytes(100000000, 'big') }}",
    "nothing, padded": "{{ ''.center(100000000) }}",
}


@pytest.mark.parametrize("name", AMPLIFYING)
def test_what_would_take_all_memory_is_refused_before(name: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = AMPLIFYING[name]
    tracemalloc.start()
    try:
        assert len(render(tokenizer, CHAT)) < 2_000_000
    except ChatError as error:
        assert len(str(error)) < 1_000
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 30_000_000


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ([[0]] * 300)|sum(start=[]) }}", "it adds up lists"),
        ("{{ 2|round(3000000, 'ceil') }}", "it makes too much text"),
        ("{{ ('a ' * 200000)|wordwrap(1) }}", "it makes too much text"),
        ("{{ ('<a>' * 100000)|striptags }}", "it makes too much text"),
        ("{{ '%*d' % (9, 1) }}", "it formats with a width that is not written in the text"),
        ("{{ '{:{}}'.format(1, 9) }}", "it formats with a width that is not written in the text"),
        ("{{ 'a'.encode() }}", "it makes bytes"),
    ],
)
def test_what_may_take_all_time_is_refused(template: str, message: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ChatError, match=message):
        render(tokenizer, CHAT)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 2024|tojson }}{{ 123456|round(1) }}{{ '%d' % 5000 }}",
        "{{ messages[0].content|truncate(20000) }}",
        "{{ messages[0].content|default('b' * 2000) }}",
        "{{ '**{}** {{\"a\": [{}]}}'.format(messages[0].role, messages[0].content) }}{{ '**%s** 100%%' % 1 }}",
        "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ {'x': b} }}{% endfor %}{% set c, d = 5, [6] %}{{ c }}{{ d }}",
        "{% macro f() %}{{ varargs }}{{ kwargs.a }}{% endmacro %}{{ f(1, 2, a='x') }}",
        "{{ ['a', 'b']|join(', ') }}{{ ', '.join(['a', 'b']) }}",
        "{{ messages|join(' ', attribute='role') }}{{ [1, 2]|sum }}",
        "{{ 'Case 12345678: %s, 50%% ** %d' % ('x', 7) }}{{ 'Model 20250101 {}'.format(messages|pprint) }}",
        "{% set n = namespace(found=messages) %}{% for i in range(1500) %}{% set n.found = n.found + [i] %}{% endfor %}"
        "{{ n.found|length }}",
    ],
)
def test_honest_templates_are_not_disturbed(template: str) -> None:
    tokenizer, chat = tiny_tokenizer(), [{"role": "user", "content": "Hello " * 3000}]
    tokenizer.chat_template = template
    assert render(tokenizer, chat) == tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("content", ["Hello", [{"type": "text", "text": "Hello"}]])
def test_errors_are_short_whatever_a_template_raises(content: object) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no ' * 100000) }}"
    with pytest.raises(ChatError, match="no no no") as caught:
        render(tokenizer, [{"role": "assistant", "content": "a"}, {"role": "user", "content": content}] * 1000)
    assert len(str(caught.value)) < 1_000
