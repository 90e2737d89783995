"""Chat templates that write thoughts and tool calls as those of well-known families do, with the tokens of each."""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from tests.helpers.texts import byte_level


class Family(NamedTuple):
    """A chat template, and the tokens that its tokenizer has besides ordinary ones."""

    template: str
    special: tuple[str, ...] = ()  # left out of texts
    ordinary: tuple[str, ...] = ()  # added, but text like any other


_TOOLS = "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
_OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_THOUGHT = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"


def chatml(call: str, thought: str = "", opened: str = "") -> str:
    """ChatML with this form of a call `f`, and perhaps thoughts."""
    return (
        _TOOLS + "{% for m in messages %}<|im_start|>{{ m.role }}\n" + thought + "{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}{% set f = c.function %}"
        + call
        + "{% endfor %}<|im_end|>\n{% endfor %}"
        + _OPEN.replace("{% endif %}", opened + "{% endif %}")
    )


_JSON = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_CODER = (
    "\n<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
_GLM = (
    "\n<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>"
)
_MINIMAX = (
    '{% if loop.first %}\n<m:tool_call>{% endif %}\n<invoke name="{{ f.name }}">{% for k, v in '
    "f.arguments.items() %}\n"
    '<parameter name="{{ k }}">{{ v if v is string else v | tojson }}</parameter>{% endfor %}\n</invoke>'
    "{% if loop.last %}\n</m:tool_call>{% endif %}"
)
_ATTRIBUTES = (
    '{% if loop.first %}\n\n<｜M｜calls>\n{% endif %}<｜M｜invoke name="{{ f.name }}">\n'
    "{% for k, v in f.arguments.items() %}"
    "<｜M｜parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">"
    "{{ v if v is string else v | tojson }}</｜M｜parameter>\n{% endfor %}</｜M｜invoke>\n"
    "{% if loop.last %}</｜M｜calls>{% endif %}"
)
_PYTHON = (
    "{% if loop.first %}[{% endif %}{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}"
    "{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last else ']' }}"
)
_DEEPSEEK = (
    "{% if loop.first %}<|calls_begin|>{% endif %}<|call_begin|>{{ f.name }}<|sep|>{{ f.arguments | tojson }}"
    "<|call_end|>{% if loop.last %}<|calls_end|>{% endif %}"
)
_KIMI = (
    "{% if loop.first %}<|section_begin|>{% endif %}<|call_begin|>functions.{{ f.name }}:{{ loop.index0 }}<|argument|>"
    "{{ f.arguments | tojson }}<|call_end|>{% if loop.last %}<|section_end|>{% endif %}"
)
_LIST = "{% if loop.first %}[TOOL_CALLS][{% endif %}" + _JSON + "{{ ', ' if not loop.last else ']' }}"
_KEYED = (
    '{% if loop.first %}<|tools_prefix|>[{% endif %}{"{{ f.name }}": {{ f.arguments | tojson }}}'
    "{{ ', ' if not loop.last else ']<|tools_suffix|>' }}"
)
_MACRO = (
    "{% macro bare(v) %}{% if v is string %}<|\"|>{{ v }}<|\"|>{% elif v is mapping %}{{ '{' }}{% for k, x in "
    "v.items() %}"
    "{{ k }}:{{ bare(x) }}{{ ',' if not loop.last }}{% endfor %}{{ '}' }}{% elif v is iterable %}[{% for x in v %}"
    "{{ bare(x) }}{{ ',' if not loop.last }}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)
_BARE = "<|tool_call>call:{{ f.name }}{{ bare(f.arguments) }}<tool_call|>"
_BY_ID = (
    "{% if loop.first %}<|section_begin|>{% endif %}<|call_begin|>{{ c.id }}<|argument|>{{ f.arguments | tojson }}"
    "<|call_end|>{% if loop.last %}<|section_end|>{% endif %}"
)
_CHATML = ("<|im_start|>", "<|im_end|>")

FAMILIES = {
    "hermes": Family(chatml("\n<tool_call>\n" + _JSON + "\n</tool_call>"), _CHATML, ("<tool_call>", "</tool_call>")),
    "qwen3": Family(
        chatml("\n<tool_call>\n" + _JSON + "\n</tool_call>", _THOUGHT),
        _CHATML,
        ("<tool_call>", "</tool_call>", "<think>", "</think>"),
    ),
    "qwen-coder": Family(chatml(_CODER, _THOUGHT), _CHATML, ("<tool_call>", "</tool_call>")),
    "glm": Family(
        chatml(_GLM, _THOUGHT, "<think>\n"),
        (*_CHATML, "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        ("<think>", "</think>"),
    ),
    "minimax": Family(chatml(_MINIMAX, _THOUGHT), _CHATML),
    "attributes": Family(chatml(_ATTRIBUTES, _THOUGHT), _CHATML),
    "python": Family(chatml(_PYTHON), _CHATML),
    "deepseek": Family(
        chatml(_DEEPSEEK), (*_CHATML, "<|calls_begin|>", "<|call_begin|>", "<|sep|>", "<|call_end|>", "<|calls_end|>")
    ),
    "kimi": Family(
        chatml(_KIMI, _THOUGHT),
        (*_CHATML, "<|section_begin|>", "<|call_begin|>", "<|argument|>", "<|call_end|>", "<|section_end|>"),
    ),
    "gemma": Family(
        _MACRO + chatml(_BARE) + "{# <channel|> #}",
        (*_CHATML, "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    ),
    "kimi-ids": Family(
        chatml(_BY_ID, _THOUGHT),
        (*_CHATML, "<|section_begin|>", "<|call_begin|>", "<|argument|>", "<|call_end|>", "<|section_end|>"),
    ),
    "aya": Family(chatml(_CODER.replace("<parameter={{ k }}>\n", "<parameter={{ k }}>")), _CHATML),
    "mistral": Family(chatml(_LIST), (*_CHATML, "[TOOL_CALLS]")),
    "mistral-named": Family(
        chatml("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}"),
        (*_CHATML, "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    ),
    "llama": Family(chatml('{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'), _CHATML),
    "keyed": Family(chatml(_KEYED), (*_CHATML, "<|tools_prefix|>", "<|tools_suffix|>")),
}
"""By name: each writes calls in its own syntax."""

HARMONY = Family(
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    "{# <|channel|> #}",
    ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"),
)

_TRIM = "{{ m.content | trim }}"
CHATS = {
    "llama 3": "{{ bos_token }}{% if tools %}{% set called = tools | tojson(indent=4) %}{% endif %}{% for m in "
    "messages %}"
    "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{% if loop.first and called %}Cutting: {{ date_string }}\n"
    "{{ called }}\n\n{% endif %}{% if m.tool_calls %}{% if m.tool_calls|length != 1 %}{{ raise_exception('one "
    "call') }}"
    '{% endif %}{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | '
    "tojson }}}{% elif m.content is string %}" + _TRIM + "{% else %}{% for part in m.content %}{{ part.text | trim }}"
    "{% endfor %}{% endif %}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant"
    "<|end_header_id|>\n\n{% endif %}",
    "mistral instruct": "{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = "
    "messages[0].content + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ system ~ m.content if loop.last and system else m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
    "gemma 2": "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    + _TRIM
    + "<end_of_turn>"
    "\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    "command-r": "{{ bos_token }}{% for m in messages %}<|START_OF_TURN_TOKEN|>{{ {'user': '<|USER_TOKEN|>', "
    "'system': "
    "'<|SYSTEM_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>'}[m.role] }}{{ m.content.strip() }}<|END_OF_TURN_TOKEN|>"
    "{% endfor %}{% if documents %}{{ documents }}{% endif %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|>"
    "<|CHATBOT_TOKEN|>{% endif %}",
    "phi": "{% for m in messages %}{{ '<|' + m.role + '|>' + '\n' + m.content + '<|end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "deepseek r1": "{{ bos_token }}{% set ns = namespace(is_tool=false) %}{% for m in messages %}{% if m.role "
    "== 'user' %}"
    "<｜User｜>{{ m.content }}{% elif m.role == 'assistant' %}{% set text = m.content.split('</think>')[-1] %}"
    "<｜Assistant｜>{% for c in m.tool_calls or [] %}<｜tool▁call▁begin｜>{{ c.function.name }}\n"
    "{{ c.function.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}{{ text }}"
    "<｜end▁of▁sentence｜>{% else %}{% set ns.is_tool = true %}"
    "{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt and not ns.is_tool %}<｜Assistant｜>"
    "{{ '<think>\n' if thinking }}{% endif %}",
    "qwen 3": "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% set ns = namespace(last=messages|length - 1) %}{% for m in messages[::-1] %}{% set i = "
    "messages|length "
    "- 1 - loop.index0 %}{% if m.role == 'user' and m.content is string %}{% set ns.last = i %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.index0 > ns.last "
    "%}<think>\n"
    "{{ (m.reasoning_content or '').strip('\n') }}\n</think>\n\n{% endif %}{{ m.content | string | "
    "replace('\t', ' ') }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not "
    "enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
}
"""Further templates, whose ways to write chats are those of the families that they are named after."""


def tokenizer_of(family: Family) -> PreTrainedTokenizerBase:
    """A byte-level tokenizer with the family's template and tokens."""
    tokenizer = deepcopy(byte_level())
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in family.special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.ordinary])
    tokenizer.chat_template = family.template
    return tokenizer
