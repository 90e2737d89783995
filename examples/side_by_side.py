"""Decodes one prompt with transformers, with its prompt lookup and with copyspec; prints the output and the timings."""

import os
import sys
import textwrap
from time import perf_counter

import torch

from examples.demo_tasks import Task


def compared(engine, task: Task, tokens: int = 120) -> tuple[str, bool]:  # type: ignore[no-untyped-def]
    """The output (copies coloured on a terminal) with a line per decoder; and whether all outputs were equal."""
    chat, references, rows, outputs = task.chat, task.references, [], []
    passes: list[object] = []
    hook = engine.model.register_forward_hook(lambda *_: passes.append(None))
    ids = torch.tensor([engine.codec.encode_chat(chat).ids], device=engine.model.device)
    for name, lookup in (("transformers", None), ("prompt lookup", 10), ("copyspec", None)):
        for limit in (2, tokens):  # a short warm-up run first, since a model's first passes allocate memory
            passes.clear()
            started = perf_counter()
            if name == "copyspec":
                result = engine.generate(chat, references, edit_source=task.edit_source, max_new_tokens=limit)
                output = list(result.token_ids)
            else:
                options = {"max_new_tokens": limit, "do_sample": False, "prompt_lookup_num_tokens": lookup}
                output = engine.model.generate(ids, **options)[0, ids.shape[1] :].tolist()
        rows.append((name, len(output), len(passes), perf_counter() - started))
        outputs.append(output)
    hook.remove()
    lines = [f"{name:<14}{n:>4} tokens {p:>4} passes {n / p:>5.1f} a pass {s:>7.2f} s" for name, n, p, s in rows]
    equal = outputs[0] == outputs[1] == outputs[2]
    speed = " and ".join(f"{rows[i][3] / rows[2][3]:.1f} times as fast as {rows[i][0]}" for i in (0, 1))
    text, has_colours = result.text, sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for at in reversed(result.spans if has_colours else []):
        text = f"{text[: at.start_char]}\033[32m{text[at.start_char : at.end_char]}\033[0m{text[at.end_char :]}"
    text = text.strip() if has_colours else textwrap.fill(text.strip(), 80)
    return "\n".join([text, "", *lines, f"{'EQUAL' if equal else 'DIFFERENT'}, {speed}"]), equal
