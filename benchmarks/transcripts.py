"""Recorded outputs of real models: reading, sampling, tokenising."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from copyspec.drafters.predictors.ngrams import NGrams, WordNGrams
from copyspec.sources import Source
from copyspec.text.blocks import break_tokens, encode_block, find_blocks
from kit import places
from kit.reporting import INPUTS, read_rows

EDIT_TASKS = frozenset({"gec", "gec_document", "code_edit"})
"""Tasks whose first reference is the text being edited. In other tasks, all references are ordinary ones."""

END_NAMES = ("<|end_of_text|>", "</s>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>")
"""End-of-sequence tokens of the tokenizers in use (Llama 3, Llama 2, GPT-2, Qwen), in order of preference."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """One recorded reply with the prompt and references that its writer was given."""

    id: str
    task: str
    set: str  # the part of the id before the first ":" or "-"
    model: str
    group: str  # rows of one group share the source of their prompt and must stay on one side of a train/test split
    prompt: str
    references: tuple[str, ...]
    output: str

    @property
    def key(self) -> tuple[str, str, str]:
        """(task, set, model), by which figures are reported."""
        return self.task, self.set, self.model


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A transcript as token ids. `output` ends with the end-of-sequence token."""

    prompt: list[int]
    references: list[list[int]]
    output: list[int]
    ngrams: NGrams | None = None
    """N-gram statistics of the language, in tokens of the row's tokenizer."""
    blocks: Sequence[Source] = ()
    """Candidate blocks of the prompt that may be the edited text."""
    breaks: frozenset[int] = frozenset()
    """See `text.blocks.break_tokens`."""


def read_transcripts(paths: Iterable[str | Path]) -> list[Transcript]:
    """Read the rows of `.jsonl.gz` files, or of all such files in folders, in a fixed order.

    Raises ValueError if a path is neither, or if a row lacks a field.
    """
    rows, files = [], _files(paths)
    places.say_sample(files)
    for file in files:
        for number, row in enumerate(read_rows(file), start=1):
            try:
                rows.append(transcript(row))
            except KeyError as error:
                raise ValueError(f"{file}, line {number}: the row has no field {error}") from None
    return rows


def choose_rows(rows: Sequence[Transcript], per_set: int | None, seed: int = 0) -> list[Transcript]:
    """Draw at most `per_set` rows of each (task, set, model) with `seed`, keeping the order of `rows`; None: all
    rows."""
    if per_set is None:
        return list(rows)
    by_key: dict[tuple[str, str, str], list[int]] = {}
    for index, row in enumerate(rows):
        by_key.setdefault(row.key, []).append(index)
    chosen: list[int] = []
    for key in sorted(by_key):
        indices = by_key[key]
        if len(indices) > per_set:
            indices = random.Random(f"{seed}:{key}").sample(indices, per_set)
        chosen.extend(indices)
    return [rows[index] for index in sorted(chosen)]


def load_tokenizer(file: str | Path) -> Tokenizer:
    """Load a `tokenizer.json` file, gzipped or not."""
    path = Path(file)
    if not path.is_file():
        raise ValueError(
            f"no tokenizer file at {str(file)!r}: give the path of a tokenizer.json or tokenizer.json.gz, of a "
            "model's folder or page on the hub"
        )
    content = path.read_bytes()
    try:
        return Tokenizer.from_str((gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8"))
    except Exception as error:  # tokenizers raises Exception itself
        raise ValueError(f"{str(file)!r} is no tokenizer.json: {error!s:.200}") from error


def end_token(tokenizer: Tokenizer) -> int:
    """Return the tokenizer's end-of-sequence token, or the first id beyond its vocabulary if it has none."""
    for name in END_NAMES:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return int(token)
    return int(tokenizer.get_vocab_size())


def tokenise(row: Transcript, tokenizer: Tokenizer, eos: int) -> TokenRow:
    """Tokenise a row. The end of the output is its only special token."""

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def place(text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoded = tokenizer.encode(text, add_special_tokens=False)
        return list(encoded.ids), list(encoded.offsets)

    blocks = []
    for span in find_blocks(row.prompt):
        block = encode_block(row.prompt, span, place)
        blocks.append(Source(block.ids, "block", block.starts, (span.start, span.stop), block.ends, block.asks))
    return TokenRow(
        encode(row.prompt),
        [encode(text) for text in row.references],
        [*encode(row.output), eos],
        ngrams(tokenizer),
        blocks,
        breaks(tokenizer),
    )


@lru_cache(maxsize=1)
def ngrams(tokenizer: Tokenizer) -> NGrams:
    """Return the n-gram statistics of the language in the tokens of `tokenizer`."""

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    return NGrams(WordNGrams.read(), encode)


@lru_cache(maxsize=1)
def breaks(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens that labels and opening marks end with."""
    return break_tokens(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)


def _files(given_paths: Iterable[str | Path]) -> list[Path]:
    paths, files = list(given_paths), list[Path]()
    for name in paths:
        path = Path(name)
        if path.is_dir():
            files.extend(sorted(path.glob("*.jsonl.gz")))
        elif path.is_file():
            files.append(path)
        else:
            raise ValueError(
                f"no transcripts at {str(name)!r}: give .jsonl.gz files or folders that hold them; {INPUTS}"
            )
    if not files:
        raise ValueError(f"no .jsonl.gz file among the transcripts given: {', '.join(map(str, paths))}; {INPUTS}")
    return files


def transcript(row: Mapping[str, object]) -> Transcript:
    """Make a transcript of a row's fields. Raises KeyError for one that it lacks, ValueError for bad references."""
    name = str(row["id"])
    references = row["references"]
    if not isinstance(references, list):
        raise ValueError(f"references of row {name!r} must be a list of texts, got {references!r}")
    return Transcript(
        id=name,
        task=str(row["task"]),
        set=name.split(":")[0].split("-")[0],
        model=str(row["model"]),
        group=str(row.get("group", name)),
        prompt=str(row["prompt"]),
        references=tuple(str(text) for text in references),
        output=str(row["output"]),
    )
