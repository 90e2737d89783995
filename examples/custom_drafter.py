"""A drafter of your own: it proposes one fixed phrase. A wrong drafter costs time, never output.

python -m examples.custom_drafter
"""

from collections.abc import Sequence

import copyspec
from copyspec.budget import Budget
from copyspec.decoding.loop import decode
from copyspec.decoding.requests import Request
from copyspec.options import SamplingOptions
from copyspec.targets import wrap
from copyspec.tree import EMPTY, ROOT, DraftTree


class PhraseDrafter:
    def __init__(self, phrase: Sequence[int]) -> None:
        self.rest = list(phrase)

    def propose(self, budget: Budget) -> DraftTree:
        n = min(len(self.rest), budget.max_nodes)
        return DraftTree(self.rest[:n], [ROOT, *range(n - 1)], [1.0] * n, [None] * n) if n else EMPTY

    def accept(self, tokens: Sequence[int]) -> None:
        self.rest = self.rest[len(tokens) :] if list(tokens) == self.rest[: len(tokens)] else []


def main() -> None:
    engine = copyspec.load()
    prompt = engine.codec.encode("Correct the grammar: we has time.", wrap=True).ids
    phrase = engine.codec.encode(" We have time.").ids
    end = frozenset([engine.tokenizer.eos_token_id])
    request = Request(prompt, 16, SamplingOptions(), eos_token_ids=end, drafter=lambda: PhraseDrafter(phrase))
    print([list(output.tokens) for step in decode(wrap(engine.model), [request]) for output in step])


if __name__ == "__main__":
    main()
