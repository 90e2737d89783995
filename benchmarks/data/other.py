"""The other files: corrected sentences, passages with questions, tokenizers."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data import corpora, tokenizers
from benchmarks.data.making import Different
from benchmarks.data.origins import Checkouts

Rows = Iterable[Mapping[str, Any]]


HASHES = {
    "gec/jfleg_dev.jsonl.gz": "b5501d76707f28e90ce40ebda1f52f9d0c091cc9620f6ab106401ea1251a8f80",
    "gec/gmeg_wiki_dev.jsonl.gz": "6bbfd3d70449494fa45abab54808c9cdc91a993ddf3b0b70a8a217acd1f4e996",
    "gec/conll14.jsonl.gz": "d101734b952d4807011a7bffa0b2f6aa368056d84220b416f5e076e996162c2c",
    "retrieval/passages_squad.jsonl.gz": "f1950fb97727118b058fd49744df5b85be8d541e80ab872b9804bfc35f23bf1d",
    "retrieval/queries_squad.jsonl.gz": "22459999d4124cd9bc06cc4a7876512e4e005fb68ead056e94530482875e842c",
    "retrieval/passages_nq.jsonl.gz": "a25507ea7b3dee1d7eaa0b459ef4a7fb6df35c5ee3da974a98c26cef28624805",
    "retrieval/queries_nq.jsonl.gz": "e92560b63319819b6d5e8d1a41f47ae2d885ae70790ecc87dffc7e210a9deee7",
}
"""SHA-256 of the texts. Tokenizers have none: how they are written depends on the version of `tokenizers`."""


@dataclass(frozen=True, slots=True)
class Product:
    """A file made of one origin's. `make` returns its text from the folder of the origin."""

    name: str
    origin: str
    paths: tuple[str, ...]
    make: Callable[[Path], str]

    def is_in(self, folder: Path) -> bool:
        path = folder / self.name
        return path.is_file() and self._is_measured(gzip.decompress(path.read_bytes()))

    def _is_measured(self, text: bytes) -> bool:
        return self.name not in HASHES or hashlib.sha256(text).hexdigest() == HASHES[self.name]

    def write(self, folder: Path, checkouts: Checkouts) -> None:
        """Raises Unreachable, or Different if the text is not what was measured with."""
        text = self.make(checkouts.files(self.origin, self.paths)).encode("utf-8")
        if not self._is_measured(text):
            raise Different("its content is not what was measured with")
        (folder / self.name).parent.mkdir(parents=True, exist_ok=True)
        part = folder / f"{self.name}.part"
        part.write_bytes(gzip.compress(text, mtime=0))
        part.replace(folder / self.name)


def _lines(rows: Rows) -> str:
    return "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)


JFLEG = ("dev/dev.src", *(f"dev/dev.ref{n}" for n in range(4)))
GMEG = ("data/dev/wiki/source", *(f"data/dev/wiki/ref{n}" for n in range(4)))
M2 = "2-S2S/T5/transformer/evaluation_scorer/test-M2/official-2014.combined.m2"
SQUAD, SQUAD_FILE = "pulakdas1999/QnA_using_BERT", "dev-v1.1.json.zip"
NQ, NQ_FILE = "nelson-liu/lost-in-the-middle", "qa_data/nq-open-oracle.jsonl.gz"
HELD_SENTENCES = frozenset(
    {
        number
        for first, last in (
            *((1, 24), (49, 168), (217, 240), (265, 288), (313, 600), (625, 744), (769, 864), (889, 960)),
            *((985, 1032), (1201, 1224), (1249, 1312)),
        )
        for number in range(first, last + 1)
    }
)


def _parallel(files: tuple[str, ...], name: str) -> Callable[[Path], str]:
    return lambda folder: _lines(
        corpora.parallel(folder / files[0], [folder / reference for reference in files[1:]], name)
    )


def _part(read: Callable[[Path], tuple[Rows, ...]], file: str, number: int) -> Callable[[Path], str]:
    return lambda folder: _lines(read(folder / file)[number])


def _vocabulary(make: Callable[[Path], Any], file: str) -> Callable[[Path], str]:
    return lambda folder: str(make(folder / file).to_str())


NLTK = ("packages/corpora/inaugural.zip", "packages/corpora/state_union.zip")
LLAMA3, GPT2 = "models/llama3/tokenizer.model", "whisper/assets/gpt2.tiktoken"
LLAMA2, QWEN = "exp/llama2_13b_lora_0217/tokenizer.json", "qwen.tiktoken"

PRODUCTS: tuple[Product, ...] = (
    Product("gec/jfleg_dev.jsonl.gz", "keisks/jfleg", JFLEG, _parallel(JFLEG, "jfleg-dev")),
    Product("gec/gmeg_wiki_dev.jsonl.gz", "grammarly/GMEG", GMEG, _parallel(GMEG, "gmeg-wiki-dev")),
    Product(
        "gec/conll14.jsonl.gz",
        "Linlt-leon/ETTE",
        (M2,),
        lambda folder: _lines(corpora.m2(folder / M2, HELD_SENTENCES)),
    ),
    *(
        Product(f"retrieval/{kind}_{short}.jsonl.gz", origin, (file,), _part(read, file, number))
        for short, origin, file, read in (
            ("squad", SQUAD, SQUAD_FILE, corpora.squad),
            ("nq", NQ, NQ_FILE, corpora.natural_questions),
        )
        for number, kind in enumerate(("passages", "queries"))
    ),
    Product(
        "text/speeches.txt.gz",
        "nltk/nltk_data",
        NLTK,
        lambda folder: "".join(f"{text}\n" for text in corpora.speeches([folder / name for name in NLTK])),
    ),
    *(
        Product(f"tokenizers/{name}.tokenizer.json.gz", origin, (file,), _vocabulary(make, file))
        for name, origin, file, make in (
            ("llama3", "meta-llama/llama-models", LLAMA3, tokenizers.llama3),
            ("gpt2", "openai/whisper", GPT2, tokenizers.gpt2),
            ("llama2", "CodingLL/RAGTruth_Eval", LLAMA2, tokenizers.given),
            ("qwen", "x1ngzai/Qwen-VL-Chat-Int4", QWEN, tokenizers.qwen),
        )
    ),
)
