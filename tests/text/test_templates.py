"""Chat templates come from strangers: none takes all memory or time, and honest ones write what they do elsewhere."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest

from copyspec.text import chat, templates
from copyspec.text.chat import ChatError, render
from tests.helpers.tiny import CHAT_TEMPLATE, tiny_tokenizer

READING = "{% set kind = mode %}{% if enable_thinking %}think{% endif %}{{ messages[0].content }}{{ kind }}"


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, ""),
        ({"enable_thinking": False}, ""),
        ({"enable_thinking": True, "mode": 1}, ""),
        ({"enable_thinkin": True}, "'enable_thinkin': it changes nothing; did you mean 'enable_thinking'?"),
        ({"enableThinking": True}, "did you mean 'enable_thinking'?"),
        ({"modus": 1, "mode": 1}, "'modus': it changes nothing; did you mean 'mode'?"),
        ({"kind": 1}, "'kind': it changes nothing"),  # which the template sets itself
        ({"budget": 1}, "'budget': it changes nothing"),
        ({"x" * 9000: 1}, "it changes nothing"),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_variables_that_the_template_does_not_read_are_named_once(
    variables: dict[str, object], told: str, named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    chat._note_unread.cache_clear()
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = {"default": CHAT_TEMPLATE, "tool_use": READING} if named else READING
    for _ in range(2):
        assert render(tokenizer, CHAT, variables=variables)
    assert len(caplog.records) == bool(told) and told in caplog.text and len(caplog.text) < 400


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
        ("{{ 1 }}" * 20_000, "it has 140000 characters, and more than 131072 are not compiled"),
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
        "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list|length }}{{ [3, 1]|sort }}",
        "{{ messages|groupby('role')|map('first')|join }}{{ messages|rejectattr('role', 'in', ['user'])|list }}",
        "{{ messages[::-1]|length }}{{ 'user' in messages|map(attribute='role') }}{{ {'b': 1, 'a': 2}|dictsort }}",
        "{{ [2, 1, 2]|unique|list }}{{ [1, 2, 3]|batch(2)|list }}{{ [1, 2]|min }}{{ []|map('upper')|list }}",
        "{{ 5 - 3.5 }}{{ dict(a=1)|items|list }}{{ dict([('a', 1)]) }}{{ 'abc'|trim('a') }}{{ nothing|list }}",
        "{{ strftime_now('%d %b %Y')|length }}{{ range(3)|select('odd')|first }}",
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


LIST = "{% set a = range(99999)|list %}"
SLOW = {
    "select": LIST + "{{ a|select('in', a)|list|length }}",
    "reject": LIST + "{{ a|reject('in', a)|list|length }}",
    "first": "{{ range(99999)|select('in', range(99999, 199998)|list)|first }}",
    "last": LIST + "{{ a|select('in', a)|list|last }}",
    "select in select": LIST + "{{ a|select('in', a)|select('in', a)|select('in', a)|list }}",
    "selectattr": LIST + "{{ a|selectattr('real', 'in', a)|list|length }}",
    "rejectattr": LIST + "{{ a|rejectattr('real', 'in', a)|list|length }}",
    "sum": LIST + "{{ a|select('in', a)|sum }}",
    "max": LIST + "{{ a|select('in', a)|max }}",
    "min": LIST + "{{ a|select('in', a)|min(attribute='real') }}",
    "sort": LIST + "{{ a|select('in', a)|sort|length }}",
    "groupby": LIST + "{{ a|select('in', a)|groupby('real')|length }}",
    "unique": LIST + "{{ a|select('in', a)|unique|list|length }}",
    "batch": LIST + "{{ a|select('in', a)|batch(2)|list|length }}",
    "slice": LIST + "{{ a|select('in', a)|slice(2)|list|length }}",
    "map": LIST + "{{ a|select('in', a)|map('int')|list|length }}",
    "join": LIST + "{{ a|select('in', a)|join }}",
    "for": LIST + "{% for i in a|select('in', a) %}{% endfor %}",
    "for, filtered": LIST + "{% for i in a if i in a %}{% endfor %}",
    "recursive for": LIST + "{% for i in a recursive %}{% if loop.depth < 4 %}{{ loop(a) }}{% endif %}{% endfor %}",
    "in": LIST + ("{{ " + "-1 in a or " * 150 + "1 }}") * 10,
    "in, as tests": LIST + ("{{ " + "-1 is in(a) or " * 150 + "1 }}") * 10,
    "==": LIST + "{% set b = range(99999)|list %}" + ("{{ " + "a == b and " * 150 + "1 }}") * 10,
    "nested selects": "{% set n = namespace(g=range(99999)) %}{% for i in range(300) %}"
    "{% set n.g = n.g|select('ge', 0) %}{% endfor %}{{ n.g|list|length }}",
    "nested selects without test": "{% set n = namespace(g=range(1, 99999)) %}{% for i in range(300) %}"
    "{% set n.g = n.g|select %}{% endfor %}{{ n.g|list|length }}",
    "nested attributes": "{% set n = namespace(g=range(99999)) %}{% for i in range(300) %}"
    "{% set n.g = n.g|map(attribute='real') %}{% endfor %}{{ n.g|list|length }}",
    "unpacked": LIST + "{% macro f() %}{% endmacro %}{{ f(*a|select('in', a)) }}",
    "colliding keys": "{{ range(0, 90000 * 2305843009213693951, 2305843009213693951)|unique|list|length }}",
    "colliding keys of a mapping": "{{ {}.fromkeys(range(0, 90000 * 2305843009213693951, 2305843009213693951)) }}",
    "colliding pairs": "{{ dict(range(0, 90000 * 2305843009213693951, 2305843009213693951)|batch(2))|length }}",
    "keys of an attribute": "{% set n = namespace(t=('x' * 9000, )) %}{% set n.t = n.t * 50 %}"
    "{{ ([n] * 90000)|sort(attribute='t')|length }}",
    "long keys": LIST + "{% set n = namespace(t=a) %}{{ ([n] * 90000)|sort(attribute='t')|length }}",
    "long keys of groups": LIST + "{% set n = namespace(t=a) %}{{ ([n] * 90000)|groupby('t')|length }}",
    "largest long key": LIST + "{% set n = namespace(t=a) %}{{ ([n] * 90000)|max(attribute='t') }}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "difference": "{% set d = {}.fromkeys(range(9999)) %}{{ d.keys() - d.keys() }}",
    "trim": "{{ ('ab' * 200000)|trim('c' * 200000 ~ 'ab') }}",
    "width of a date": "{{ strftime_now('%0999999999Y') }}",
}  # fmt: skip


@pytest.mark.parametrize("name", SLOW)
def test_work_inside_one_expression_ends_in_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 0.05)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages[0].role }}"
    render(tokenizer, CHAT)
    tokenizer.chat_template = SLOW[name]
    with templates.bounded(SLOW[name], 10):  # compiled before, which is not what this measures
        templates._compiled(SLOW[name])
    begin = time.thread_time()
    with pytest.raises(ChatError, match=r"it (takes more than|makes too much|produces too much|subtracts what)"):
        render(tokenizer, [{"role": "system", "content": "Hello"}, *CHAT])
    assert time.thread_time() - begin < 1.5


def test_chains_of_filters_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 0.1)
    tokenizer, draw = tiny_tokenizer(), random.Random(0)
    links = [
        "select('in', a)",
        "reject('in', b)",
        "map('int')",
        "map(attribute='real')",
        "unique",
        "selectattr('real')",
    ]
    links += ["select('ge', 0)", "list", "sort", "batch(1)|map('first')", "rejectattr('imag')"]
    ends = ["list|length", "sum", "max", "min", "last", "join", "groupby('real')|list|length", "string"]
    for _ in range(10):
        chain = "|".join(draw.choices(links, k=draw.randint(1, 6)))
        tokenizer.chat_template = LIST + "{% set b = a %}" + f"{{{{ 'x' ~ (a|{chain}|list|{draw.choice(ends)}) }}}}"
        begin = time.thread_time()
        try:
            render(tokenizer, CHAT)
        except ChatError as error:
            assert len(str(error)) < 1_000
        assert time.thread_time() - begin < 1.5, tokenizer.chat_template


READING_TOOLS = (
    "{{ tool.function.name + ': ' + tool.function.description }}",
    "{% for k, v in tool.function.parameters.properties | items %}{{ k + v.description }}{% endfor %}!",
    "{{ tool.function.parameters.properties | length }}{{ tool.function.description | trim }}",
)
SHORT_TOOLS: tuple[dict[str, object], ...] = (
    {"name": "f"},
    {"name": "f", "description": "Does it."},
    {"name": "f", "parameters": {}},
    {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
)


@pytest.mark.parametrize("variable", ["tools", "xml_tools", "available_tools"])
@pytest.mark.parametrize("reading", READING_TOOLS)
@pytest.mark.parametrize("function", SHORT_TOOLS)
def test_tools_may_leave_out_what_a_template_reads(
    variable: str, reading: str, function: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """A description is optional in OpenAI's format, and so are parameters; templates read tools by several names."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = f"{{% for tool in {variable} or [] %}}{reading}{{% endfor %}}" + CHAT_TEMPLATE
    plain, text = render(tokenizer, CHAT), render(tokenizer, CHAT, [{"type": "function", "function": function}])
    assert text.endswith(plain) and len(text) > len(plain) and not caplog.records


def test_tools_that_a_template_does_not_take_are_named() -> None:
    tokenizer = tiny_tokenizer()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}}}}}
    tokenizer.chat_template = (
        "{% for tool in tools or [] %}{% for k, v in tool.function.parameters.properties | items %}{{ k + v.unit }}"
        "{% endfor %}{% endfor %}" + CHAT_TEMPLATE
    )
    with pytest.raises(ChatError, match="rejects tools f: 'dict object' has no attribute 'unit'"):
        render(tokenizer, CHAT, [tool])
    for template in ("{# tools #}", "{{ 'tools' }}", "{% set tool_list = [] %}"):
        tokenizer.chat_template = template + CHAT_TEMPLATE
        with pytest.raises(ChatError, match="tools are not supported by the chat template"):
            render(tokenizer, CHAT, [tool])
