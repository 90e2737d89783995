"""A trial: runs a session with drafts, and compares the logits of every node to those of `generate`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from copyspec.targets.hooks.attention import masked_attention
from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.hooks.recurrence import is_recurrent
from copyspec.targets.model.facts import read_device, read_dtype, read_facts
from copyspec.targets.model.generation import prepared, settings
from copyspec.tree import ROOT, DraftTree, path_to

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.base import Target

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
"""Maximum difference, in standard deviations of the logits. A wrong mask or position causes 0.1 or more."""

TOLERANCE_LOW_PRECISION = 0.1

EMPTY, CHAIN, SHORT = (), tuple(range(ROOT, 8)), (ROOT, ROOT)
BRANCHED = (ROOT, 0, 1, 0, ROOT, 4)
WIDE = (ROOT, 0, 1, ROOT, *range(3, 12), 1, 5, ROOT)
"""Parents of draft nodes. `WIDE` has a path beyond a sibling's window whose nodes must be moved in the cache."""


_BACK = 20


class MismatchError(ValueError):
    """The target's scores differ from those of plain decoding."""


class _Draft(NamedTuple):
    """A tree of one row that was scored."""

    prompt: Sequence[int]
    begin: int  # number of tokens given to `generate`, which generates the others
    length: int  # of the row's text before it
    paths: Sequence[Sequence[int]]  # to its leaves
    texts: Sequence[Sequence[int]]  # the row's text and these paths
    logits: torch.Tensor  # [1 + M, V]

    def check(self, of_texts: Sequence[torch.Tensor], model: PreTrainedModel) -> None:
        """`of_texts`: the logits after the row's text and after each node of the path, for each of `texts`."""
        by_node: dict[int, torch.Tensor] = {}
        for path, logits in zip(self.paths, of_texts, strict=True):
            by_node |= zip([ROOT, *path], logits, strict=False)
        expected = torch.stack([by_node[node] for node in sorted(by_node)])
        check(self.logits, expected, f"draft nodes after {self.length} tokens", model)


_Score = Callable[[_Draft, Sequence[Sequence[int]]], torch.Tensor]


class Trial:
    """The rows of one session and their expected sequences. `step` raises MismatchError if the logits differ, or where
    the reference is `generate`, `close` does, which calls it once for all drafts of a row."""

    def __init__(
        self, target: Target, model: PreTrainedModel, lengths: Sequence[int], *, seed: int = 0, piece: int | None = None
    ) -> None:
        """`lengths`: tokens of each row's first `score`. `piece`: tokens per prefill pass."""
        self._target, self._model, self._random = target, model, random.Random(seed)
        self._reads, self._limit = target.is_encoder_decoder, target.max_length
        self._configs = read_facts(model).configs
        settings = model.generation_config
        ends = getattr(settings, "eos_token_id", None)
        self._special = {getattr(settings, "pad_token_id", None), *(ends if isinstance(ends, list) else [ends])}
        # Some models compute another result in a pass of many tokens: the reference is what `generate` computes.
        self._steps = is_recurrent(model) or getattr(target, "is_plain", False)
        self._scored: list[_Draft] = []  # to be compared by `close`
        self._prompts: list[list[int]] = []
        self._sequences: list[list[int]] = []
        self._starts: list[int] = []
        self._cached: list[int] = []
        self._append(lengths)
        self.session = target.open(self._prompts)
        if piece is not None and hasattr(self.session, "prefill_chunk") and not self._steps:
            self.session.prefill_chunk = piece

    def _append(self, lengths: Sequence[int]) -> None:
        if self._limit is not None:
            lengths = [min(length, self._limit - 1) for length in lengths]
        prompts = [self._tokens(7 + 5 * row if self._reads else length) for row, length in enumerate(lengths)]
        sequences = [self._target.start(prompt) for prompt in prompts]
        if self._reads:
            for sequence, length in zip(sequences, lengths, strict=True):
                sequence += self._tokens(length - 1)
        self._prompts += prompts
        self._sequences += sequences
        self._starts += map(len, sequences)
        self._cached += [0] * len(lengths)

    def step(self, *shapes: Sequence[int]) -> None:
        """Score a draft per row, compare every node, and keep a random path of each draft and one more token."""
        trees = [self._tree(shape, sequence) for shape, sequence in zip(shapes, self._sequences, strict=True)]
        uncached = [sequence[cached:] for sequence, cached in zip(self._sequences, self._cached, strict=True)]
        scores = self.session.score(uncached, trees)
        paths = []
        for row, tree in enumerate(trees):
            draft = self._draft(row, tree, scores[row])
            if self._steps:
                self._scored.append(draft)
            else:
                self._compare([draft], self._passes, 1)
            paths.append(path_to(tree.parents, self._random.randrange(ROOT, len(tree))))
        self.session.keep(paths)
        for row, (tree, path) in enumerate(zip(trees, paths, strict=True)):
            self._cached[row] += len(uncached[row]) + len(path)
            self._sequences[row] += [*(tree.tokens[node] for node in path), *self._tokens(1)]
        if self._limit is not None and max(map(len, self._sequences)) >= self._limit:
            for row, sequence in enumerate(self._sequences):
                if len(sequence) >= self._limit:
                    del sequence[max(1, self._limit - _BACK) :]  # go back from the limit, where decoding would stop
                    self._cached[row] = len(sequence) - 1
            self.session.trim(self._cached)
            self._cached = list(self.session.lengths)  # a recurrent row begins anew
        if list(self.session.lengths) != self._cached:
            raise MismatchError(f"rows of {self._cached} tokens are counted as {list(self.session.lengths)}")

    def select(self, *rows: int) -> None:
        self.session.select(rows)
        for name in ("_prompts", "_sequences", "_starts", "_cached"):
            values = getattr(self, name)
            setattr(self, name, [values[row] for row in rows])

    def add(self, lengths: Sequence[int]) -> None:
        """Append rows of so many tokens."""
        before = len(self._prompts)
        self._append(lengths)
        self.session.add(self._prompts[before:])

    def finish(self) -> None:
        """Close the session, and compare the reference itself with `generate`, along each row."""
        self.close()
        if self._steps:  # it was `generate`
            return
        for row, (prompt, sequence) in enumerate(zip(self._prompts, self._sequences, strict=True)):
            begin = self._begin(row)
            expected = self._passed(prompt, [sequence[:-1]])[0, begin - 1 :]
            logits = generated(self._model, prompt, [sequence], begin)[0]
            check(expected, logits, "passes with and without a cache", self._model)

    def compare_plainly(self, count: int) -> None:
        """Run `count` steps without drafts, and compare them with `generate`."""
        steps = []
        for _ in range(count):
            uncached = [sequence[cached:] for sequence, cached in zip(self._sequences, self._cached, strict=True)]
            steps.append(self.session.score(uncached, [DraftTree()] * len(uncached)))
            self.session.keep([()] * len(uncached))
            self._cached = list(map(len, self._sequences))
            for sequence in self._sequences:
                sequence += self._tokens(1)
        self.session.close()
        for row, (prompt, sequence) in enumerate(zip(self._prompts, self._sequences, strict=True)):
            logits = torch.cat([step[row] for step in steps])
            expected = generated(self._model, prompt, [sequence], self._begin(row))[0, -count:]
            check(logits, expected, "plain steps", self._model)

    def _begin(self, row: int) -> int:
        """Number of tokens given to `generate`, which generates the others."""
        return 1 if self._reads else min(self._starts[row], len(self._sequences[row]) - 1)

    def _tree(self, shape: Sequence[int], sequence: Sequence[int]) -> DraftTree:
        size = len(shape)
        tree = DraftTree(self._tokens(size), shape, [1.0] * size, [None] * size)
        if self._limit is not None:
            tree = tree.up_to_depth(max(0, self._limit - len(sequence)))
        return tree if self._target.supports_trees else tree.first_chain()

    def _draft(self, row: int, tree: DraftTree, logits: torch.Tensor) -> _Draft:
        sequence, parents = self._sequences[row], set(tree.parents)
        leaves = [node for node in range(len(tree)) if node not in parents] or [ROOT]
        paths = [path_to(tree.parents, leaf) for leaf in leaves]
        texts = [[*sequence, *(tree.tokens[node] for node in path)] for path in paths]
        begin = min(self._starts[row], len(sequence))
        return _Draft(self._prompts[row], begin, len(sequence), paths, texts, logits.clone())

    def close(self) -> None:
        """Close the session, and compare with `generate` what has not been compared yet, all that begins alike at
        once."""
        self.session.close()
        groups: dict[tuple[tuple[int, ...], ...], list[_Draft]] = {}
        for draft in self._scored:
            groups.setdefault((tuple(draft.prompt), tuple(draft.texts[0][: draft.begin])), []).append(draft)
        for drafts in groups.values():
            self._compare(drafts, self._generated, drafts[0].begin)

    def _compare(self, drafts: Sequence[_Draft], score: _Score, first: int) -> None:
        """Compare drafts of a row, whose texts `score` scores from the `first` token on: all in one batch, and where
        that differs or fails, each alone. Rows of a batch may get other logits than alone, as RWKV's do."""
        texts = [text for draft in drafts for text in draft.texts]
        size = max(map(len, texts)) + 1
        padded = [[*text, *[text[0]] * (size - len(text))] for text in texts]
        for batches in ([padded], [[text] for text in padded]):
            try:
                logits = torch.cat([score(drafts[0], batch) for batch in batches])
                for draft in drafts:
                    own, logits = logits[: len(draft.texts)], logits[len(draft.texts) :]
                    draft.check([*own[:, draft.length - first :]], self._model)
                return
            except Exception:
                if len(batches) == len(texts):
                    raise

    def _generated(self, draft: _Draft, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        return generated(self._model, draft.prompt, texts, draft.begin)

    def _passes(self, draft: _Draft, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        return self._passed(draft.prompt, [text[:-1] for text in texts])

    @in_inference_mode
    def _passed(self, prompt: Sequence[int], texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """The logits after each token of texts of one length, [B, L, V], from a pass without a cache."""
        with masked_attention(self._model, self._configs):
            reads = [prompt] * len(texts) if self._reads else texts
            tokens, arguments = prepared(self._model, reads, texts, use_cache=False)
            generation: Any = self._model
            inputs = generation.prepare_inputs_for_generation(tokens, is_first_iteration=True, **arguments)
            inputs.pop("logits_to_keep", None)  # of the arguments, or of the configuration
            logits: torch.Tensor = generation(**inputs, return_dict=True).logits
        return logits

    def _tokens(self, count: int) -> list[int]:
        """Distinct random ids, also among siblings, without special tokens: `generate` ends at some."""
        size = self._target.vocab_size
        low = min(size // 2, 100)
        if count + len(self._special) > size - low:
            return [next(token for token in range(low, size) if token not in self._special)] * count
        drawn = self._random.sample(range(low, size), count + len(self._special))
        return [token for token in drawn if token not in self._special][:count]


@in_inference_mode
def generated(
    model: PreTrainedModel, prompt: Sequence[int], sequences: Sequence[Sequence[int]], start: int
) -> torch.Tensor:
    """The logits from which `generate` picks each token after the first `start` ones, [B, L - start, V], of
    sequences of one length that have these in common."""
    device, reads = read_device(model), model.config.is_encoder_decoder
    begun = torch.tensor([sequence[:start] for sequence in sequences], device=device)
    ids = torch.tensor([prompt] * len(sequences), device=device) if reads else begun
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if reads:
        inputs["decoder_input_ids"] = begun
    generation: Any = model
    output = generation.generate(
        **inputs,
        logits_processor=LogitsProcessorList([_Forced(sequences)]),
        generation_config=settings(
            model, new_tokens=len(sequences[0]) - start, output_logits=True, return_dict_in_generate=True
        ),
    )
    return torch.stack(output.logits, 1)


class _Forced(LogitsProcessor):
    """Forces `generate` to produce given sequences."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._sequences = sequences

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        forced = torch.full_like(scores, -torch.inf)
        for row, sequence in enumerate(self._sequences):
            forced[row, sequence[input_ids.shape[1]]] = 0.0
        return forced  # type: ignore[return-value]


def check(logits: torch.Tensor, expected: torch.Tensor, what: str, model: PreTrainedModel) -> None:
    """Raise MismatchError if a row of the logits [n, V] differs from the expected one, beyond the rounding of the dtype
    that the model computes in: `generate` returns float32 logits of any model."""
    if logits.shape != expected.shape:
        raise MismatchError(f"logits of {what} have shape {tuple(logits.shape)}, not {tuple(expected.shape)}")
    worst = _difference(logits, expected)
    if not worst <= _tolerance(model):
        raise MismatchError(f"logits of {what} differ by {worst:.2g} of their deviation")


def _difference(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, in standard deviations of the logits; NaN where one is."""
    logits, expected = logits.float(), expected.float().to(logits.device)
    return float(((logits - expected).abs().amax(-1) / expected.std(-1)).max())


def _tolerance(model: PreTrainedModel) -> float:
    return TOLERANCE.get(read_dtype(model), TOLERANCE_LOW_PRECISION)
