"""Makes hostile and damaged model folders: each kind modifies a copy of a tiny model's folder."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

Change = Callable[[Path, Path], None]
"""Modifies a folder. The second argument is the file that any code in the folder would write if it ran."""

CONFIG, GENERATION, TOKENIZER_CONFIG, TOKENIZER = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
)
WEIGHTS, INDEX, PICKLE = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
FILES = (CONFIG, GENERATION, TOKENIZER_CONFIG, TOKENIZER, WEIGHTS)


class _Runs:
    """An object that writes a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = str(canary)

    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, (f"touch {self._canary}",))


def edit(folder: Path, name: str, **changes: object) -> None:
    """Set keys of a JSON file."""
    path = folder / name
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(config | changes))


def _code(folder: Path, canary: Path) -> None:
    for name in ("evil", "custom_generate/generate", "modeling_llama", "tokenization", "__init__", "transformers"):
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f"open({str(canary)!r}, 'w').close()\n"
            "from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
            "class Evil(LlamaForCausalLM): pass\nclass EvilConfig(LlamaConfig): model_type = 'evil'\n"
            "class EvilTokenizer(PreTrainedTokenizerFast): pass\ndef generate(*a, **k): pass\n"
        )


_MAP = {
    "AutoConfig": "evil.EvilConfig",
    "AutoModel": "evil.Evil",
    "AutoModelForCausalLM": "evil.Evil",
    "AutoModelForSeq2SeqLM": "evil.Evil",
    "AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"],
}


def _coded(change: Change, folder: Path, canary: Path) -> None:
    _code(folder, canary)
    change(folder, canary)


def _config(folder: Path, _canary: Path, **changes: object) -> None:
    edit(folder, CONFIG, **changes)


def _tokenizer_config(folder: Path, _canary: Path, **changes: object) -> None:
    edit(folder, TOKENIZER_CONFIG, **changes)


def _generation(folder: Path, _canary: Path, **changes: object) -> None:
    edit(folder, GENERATION, **changes)


def _part(folder: Path, _canary: Path, kind: str) -> None:
    """Give one part of the model code of its own and no local class in its place."""
    part = {"model_type": kind, "auto_map": _MAP, "vocab_size": 96}
    other = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    (folder / CONFIG).write_text(
        json.dumps({"model_type": "encoder-decoder", "is_encoder_decoder": True, "encoder": part, "decoder": other})
    )


def code() -> Iterator[tuple[str, Change]]:
    """Folders with Python code, and every key that could name it."""
    changes: dict[str, Change] = {
        "lies there": lambda *_: None,
        "auto_map": partial(_config, auto_map=_MAP),
        "auto_map, unknown type": partial(_config, auto_map=_MAP, model_type="evil"),
        "auto_map of a repository": partial(_config, auto_map={"AutoConfig": "evil/evil--evil.Evil"}, model_type="x"),
        "auto_map of the tokenizer": partial(_tokenizer_config, auto_map=_MAP, tokenizer_class="EvilTokenizer"),
        "auto_map as a list": partial(_tokenizer_config, auto_map=["evil.EvilTokenizer", None], tokenizer_class="E"),
        "auto_map for generation": partial(_generation, auto_map=_MAP, custom_generate="."),
        "auto_map of a part": partial(_part, kind="clip_vision_model"),
        "auto_map of another part": partial(_part, kind="siglip"),
        "auto_map is a string": partial(_config, auto_map="evil.Evil", model_type="evil"),
        "kernel": partial(_config, attn_implementation="evil/kernel:fn"),
        "kernel of the hub": partial(_config, _attn_implementation="kernels-community/flash-attn2"),
        "kernel inside": partial(_config, _attn_implementation_internal="evil/kernel"),
        "kernels by part": partial(_config, attn_implementation={"": "evil/kernel"}),
        "experts of a kernel": partial(_config, experts_implementation="evil/kernel"),
        "other package's attention": partial(_config, attn_implementation="flash_attention_2"),
        "fusion": partial(_config, fusion_config={"rms_norm": True}),
        "another model": partial(_config, backbone="evil/evil", use_timm_backbone=False),
    }
    for name in (
        "AutoModel",
        "AutoTokenizer",
        "LlamaForCausalLM",
        "RagTokenizer",
        "pipeline",
        "Trainer",
        "__builtins__",
    ):
        changes[f"tokenizer_class {name}"] = partial(_classed, name)
    for method in ("awq", "gptq", "bitsandbytes", "quark", "torchao", "fp8", "gguf", "mxfp4", "evil"):
        changes[f"quantised by {method}"] = partial(_config, quantization_config={"quant_method": method, "bits": 4})
    for name, change in changes.items():
        yield f"code: {name}", partial(_coded, change)


def _classed(name: str, folder: Path, _canary: Path) -> None:
    edit(folder, TOKENIZER_CONFIG, tokenizer_class=name)
    edit(folder, CONFIG, auto_map=_MAP, model_type="clip_vision_model")


def _pickle(name: str, folder: Path, canary: Path, *, zipped: bool = True) -> None:
    (folder / WEIGHTS).unlink()
    content = pickle.dumps({"model.embed_tokens.weight": _Runs(canary)})
    if zipped:
        with zipfile.ZipFile(folder / name, "w") as file:
            file.writestr("archive/data.pkl", content)
            file.writestr("archive/version", "3\n")
            file.writestr("archive/byteorder", "little")
    else:
        (folder / name).write_bytes(content)


def _pickle_bomb(folder: Path, _canary: Path) -> None:
    (folder / WEIGHTS).unlink()
    with zipfile.ZipFile(folder / PICKLE, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(1 << 30))


def _renamed_pickle(folder: Path, canary: Path) -> None:
    (folder / WEIGHTS).write_bytes(pickle.dumps(_Runs(canary)))


def _named_pickle(folder: Path, canary: Path) -> None:
    weights = (folder / WEIGHTS).read_bytes()
    _pickle("adapter_model.bin", folder, canary)
    (folder / WEIGHTS).write_bytes(weights)
    _config(folder, canary, transformers_weights="adapter_model.bin")


def _pipe_below(folder: Path, canary: Path) -> None:
    _index({"lm_head.weight": "below/x.safetensors"}, folder, canary)
    (folder / "below").mkdir()
    _fifo("below/x.safetensors", folder, canary)


def _index(names: dict[str, object], folder: Path, canary: Path) -> None:
    (folder / WEIGHTS).rename(folder / "outside.safetensors")
    (folder / "x.bin").write_bytes(pickle.dumps(_Runs(canary)))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))


def weights() -> Iterator[tuple[str, Change]]:
    """Pickles, wrong safetensors headers, and weight indexes that lead elsewhere."""
    for name in (PICKLE, "model.pt", "consolidated.00.pth", "adapter_model.bin", "flax_model.msgpack", "tf_model.h5"):
        yield f"pickle: {name}", partial(_pickle, name)
        yield f"pickle, old: {name}", partial(_pickle, name, zipped=False)
    yield "pickle: bomb", _pickle_bomb
    yield "pickle: named safetensors", _renamed_pickle
    for label, named in {
        "up": "../outside.safetensors",
        "absolute": "/etc/passwd",
        "absolute safetensors": "/tmp/x.safetensors",
        "windows": "..\\x.safetensors",
        "pickle": "x.bin",
        "missing": "no.safetensors",
        "number": 3,
        "empty": "",
        "nul": "a\0.safetensors",
    }.items():
        yield f"index: {label}", partial(_index, {"lm_head.weight": named})
    yield "index: list", lambda folder, canary: _index([], folder, canary)  # type: ignore[arg-type]
    for label, header in {
        "no json": b"x" * 8,
        "nested": b"[" * 100_000,
        "beyond the file": b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}',
        "overlapping": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        "negative": b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        "overflow": b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}',
        "other types": b'{"lm_head.weight":{"dtype":"EVIL","shape":[1],"data_offsets":[0,4]}}',
        "empty": b"{}",
    }.items():
        yield f"safetensors: {label}", partial(_header, header, None)
    yield "safetensors: long header", partial(_header, b"{}", 1 << 60)
    yield "safetensors: no header", partial(_write, WEIGHTS, b"")
    yield "adapter", lambda folder, _: edit(folder, "adapter_config.json", base_model_name_or_path="evil/evil")
    yield "distributed", lambda folder, _: _rename(folder, WEIGHTS, "shard-00000-model-00000-of-00001.safetensors")
    yield "transformers_weights", partial(_config, transformers_weights="../outside.safetensors")
    yield "weights elsewhere", partial(_config, transformers_weights="adapter_model.bin")
    yield "weights elsewhere: pickle", _named_pickle
    yield "index: pipe in a folder below", _pipe_below


def _rename(folder: Path, old: str, new: str) -> None:
    (folder / old).rename(folder / new)


def _header(header: bytes, length: int | None, folder: Path, _canary: Path) -> None:
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", length or len(header)) + header + bytes(4))


def _write(name: str, content: bytes, folder: Path, _canary: Path) -> None:
    (folder / name).write_bytes(content)


def _fifo(name: str, folder: Path, _canary: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


def _link(name: str, to: str, folder: Path, _canary: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(to)


def _sparse(name: str, size: int, folder: Path, _canary: Path) -> None:
    with (folder / name).open("r+b") as file:
        file.truncate(size)


def files() -> Iterator[tuple[str, Change]]:
    """Something other than a regular file, or invalid JSON."""
    for name in (*FILES, INDEX, "chat_template.jinja", "special_tokens_map.json", "added_tokens.json"):
        yield f"pipe: {name}", partial(_fifo, name)
        yield f"device: {name}", partial(_link, name, "/dev/zero")
        yield f"loop of links: {name}", partial(_link, name, name)
        yield f"binary: {name}", partial(_write, name, bytes(range(256)) * 10)
    for name in (CONFIG, GENERATION, TOKENIZER_CONFIG, TOKENIZER, "special_tokens_map.json", "added_tokens.json"):
        for label, content in {
            "empty": b"",
            "list": b"[]",
            "null": b"null",
            "number": b"1e999",
            "string": b'"a"',
            "nested": b'{"a":' * 100_000,
            "nested lists": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            "half": b'{"model_type": "lla',
            "digits": b'{"model_type": ' + b"9" * 10_000 + b"}",
            "keys": b"{%s}" % b",".join(b'"%d":%d' % (i, i) for i in range(20_000)),
        }.items():
            yield f"{name}: {label}", partial(_write, name, content)
    for name in (CONFIG, TOKENIZER, TOKENIZER_CONFIG):
        yield f"{name}: 20 GB", partial(_sparse, name, 20 << 30)


def some_of_each(kinds: list[tuple[str, Change]], count: int, seed: int) -> list[tuple[str, Change]]:
    """Draw a sample of `count` kinds, reproducible by `seed`."""
    return random.Random(seed).sample(kinds, min(count, len(kinds)))
