"""Makes hostile tokenizers and chat templates, in addition to the model folders of `kinds`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.fuzz.kinds import TOKENIZER, TOKENIZER_CONFIG, Change, edit

# {{}} stands for the file that the code would write.
TEMPLATES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}",
    "attr filter": "{{ ''|attr('__class__')|attr('__mro__') }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': messages}) }}",
    "namespace": "{% set ns = namespace(__class__=1) %}{{ ns.__class__ }}",
    "function globals": "{{ raise_exception.__globals__['os'].system('touch CANARY') }}",
    "strftime": "{{ strftime_now('%Y' * 100000) }}",
    "import": "{% import 'os' as os %}{{ os.system('touch CANARY') }}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends '../x' %}",
    "list.append": "{% set x = [] %}{{ x.append(1) }}{{ x }}",
    "messages changed": "{{ messages.append(1) }}",
    "self": "{{ self._TemplateReference__context.environment }}",
    "map attribute": "{{ messages|map(attribute='__class__')|list }}",
    "raises": "{{ raise_exception('no') }}",
    "divides by zero": "{{ 1 // 0 }}",
    "index": "{{ messages[99].content.x }}",
    "syntax": "{% for %}",
    "unclosed": "{% if x %}",
    "nested": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "nothing": " ",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that print": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "comprehension": "{{ range(99999)|map('string')|map('length')|sum * (range(99999)|list|length) }}",
    "long": "{{ 'a' * 10**9 }}",
    "too long": "{{ 'a' * 10**13 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "doubling": "{% set n = namespace(s='a') %}{% for i in range(33) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    "padding": "{{ '%2000000000d' % 1 }}",
    "centre": "{{ 'a'|center(3000000000) }}",
    "range": "{{ range(10**9)|list }}",
    "list": "{{ ([0] * 10**9)|length }}",
    "million characters": "{{ 'a ' * 1000000 }}",
}


def templates() -> Iterator[tuple[str, Change]]:
    """Chat templates in the tokenizer's configuration, in a file, in a folder, and referred to by name."""
    for name, text in TEMPLATES.items():
        yield f"template: {name}", partial(_template, text)
    text = TEMPLATES["globals"]
    yield "template file", lambda folder, canary: _file("chat_template.jinja", text, folder, canary)
    yield (
        "template folder",
        lambda folder, canary: _file("additional_chat_templates/default.jinja", text, folder, canary),
    )
    yield (
        "template folder, other",
        lambda folder, canary: _file("additional_chat_templates/x.jinja", text, folder, canary),
    )
    yield "templates by name", lambda folder, _: edit(folder, TOKENIZER_CONFIG, chat_template={"a": "{{ 1 }}"})
    for value in (3, [], [{"name": "default"}], [{"name": "default", "template": 3}], {}, {"default": None}, True):
        yield f"template is {json.dumps(value)}", partial(_config, chat_template=value)


def _template(text: str, folder: Path, canary: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    edit(folder, TOKENIZER_CONFIG, chat_template=text.replace("CANARY", str(canary)))


def _file(name: str, text: str, folder: Path, canary: Path) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text.replace("CANARY", str(canary)))


def _config(folder: Path, _canary: Path, **changes: object) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True) if "chat_template" in changes else None
    edit(folder, TOKENIZER_CONFIG, **changes)


def _set(key: str, value: object, folder: Path, canary: Path) -> None:
    _config(folder, canary, **{key: value})


def _tokenizer(change: Callable[[dict[str, Any]], object], folder: Path, _canary: Path) -> None:
    data = json.loads((folder / TOKENIZER).read_text())
    change(data)
    (folder / TOKENIZER).write_text(json.dumps(data))


def _numbered(number: int, data: dict[str, Any]) -> None:
    data["model"]["vocab"]["zz"] = number


def _added(token: dict[str, object], data: dict[str, Any]) -> None:
    data["added_tokens"].append(token)


def tokenizers() -> Iterator[tuple[str, Change]]:
    """Tokenizers with wrong ids, classes, regular expressions and paths."""
    for key in ("vocab_file", "tokenizer_file", "merges_file", "spm_file", "chat_template_file", "name_or_path"):
        yield f"tokenizer_config: {key}", partial(_set, key, "/etc/passwd")
    yield "tokenizer_config: up", partial(_config, fast_tokenizer_files=["../tokenizer.1.0.json"])
    for key in (
        "model_max_length",
        "eos_token",
        "pad_token",
        "extra_special_tokens",
        "init_inputs",
        "backend",
        "gguf_file",
    ):
        for value in (-1, 10**30, "", "x" * 10**6, None, [], [1], {}, {"a": 1}, {"content": 3}, "/etc/passwd"):
            shown = json.dumps(value)[:24]
            yield f"tokenizer_config: {key}={shown}", partial(_set, key, value)
    for name in (
        "BertTokenizer",
        "T5Tokenizer",
        "LlamaTokenizer",
        "MBartTokenizer",
        "WhisperTokenizer",
        "Wav2Vec2CTCTokenizer",
    ):
        yield f"tokenizer_class {name}", partial(_config, tokenizer_class=name)
    for value in (3, None, [], "no such class", "../x", "os.system"):
        yield f"tokenizer_class {value!r}", partial(_config, tokenizer_class=value)
    token = {
        "content": "zz",
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
        "single_word": False,
    }
    for number in (-1, 2**31, 2**32, 2**40, 10**30):
        yield f"added token {number}", partial(_config, added_tokens_decoder={str(number): token})
        yield f"vocabulary {number}", partial(_tokenizer, partial(_numbered, number))
        yield (
            f"added {number}",
            partial(_tokenizer, partial(_added, {**token, "id": number})),
        )
    bomb = {"type": "Split", "pattern": {"Regex": "(a*)*b|((H|e|.)*)*c"}, "behavior": "Isolated", "invert": False}
    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "backtracking": lambda data: data.update(pre_tokenizer=bomb),
        "bad expression": lambda data: data.update(pre_tokenizer={**bomb, "pattern": {"Regex": "(("}}),
        "other model": lambda data: data.update(model={"type": "Evil"}),
        "no model": lambda data: data.pop("model"),
        "no added tokens": lambda data: data.pop("added_tokens"),
        "empty vocabulary": lambda data: data["model"].update(vocab={}),
        "merges of nothing": lambda data: data["model"].update(merges=[["q", "qq"]]),
        "no decoder": lambda data: data.update(decoder=None),
        "other version": lambda data: data.update(version="9"),
        "normaliser": lambda data: data.update(
            normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "aa" * 999}
        ),
        "growing": lambda data: data.update(
            normalizer={"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 10**6}
        ),
        "truncation": lambda data: data.update(
            truncation={"max_length": 0, "strategy": "LongestFirst", "stride": 9, "direction": "Right"}
        ),
        "padding": lambda data: data.update(
            padding={
                "strategy": {"Fixed": 10**10},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "x",
            }
        ),
    }
    for name, change in changes.items():
        yield f"tokenizer.json: {name}", partial(_tokenizer, change)
