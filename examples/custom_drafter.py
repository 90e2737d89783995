"""A drafter of your own, beside copying: it drafts phrases that your support team always writes.

python -m examples.custom_drafter
"""

from collections.abc import Sequence

import copyspec


class PhraseDrafter:
    """Drafts the rest of a phrase as soon as the output ends with the phrase's first tokens."""

    def __init__(self, phrases: Sequence[Sequence[int]]) -> None:
        self._phrases, self._output = phrases, list[int]()

    def propose(self, budget: copyspec.Budget) -> copyspec.DraftTree:
        for phrase in self._phrases:
            for begun in range(len(phrase) - 1, 1, -1):  # the longest prefix of the phrase that the output ends with
                if self._output[-begun:] == phrase[:begun]:
                    return copyspec.DraftTree.of_chain(phrase[begun : begun + budget.max_nodes])
        return copyspec.DraftTree()

    def accept(self, tokens: Sequence[int]) -> None:
        self._output.extend(tokens)


def phrases(context: copyspec.DraftContext) -> PhraseDrafter:
    return PhraseDrafter([context.encode(" Thank you for your patience, and please write to us again.")])


def main() -> None:
    prompt = "Correct the grammar: We is sorry for the trouble. Thank you for your patience, and please writes to us."
    result = copyspec.generate(prompt, drafter=["auto", phrases], max_new_tokens=60)
    print(result.text, f"{result.stats.num_output_tokens} tokens in {result.stats.num_calls} passes", sep="\n")
    assert result.text == copyspec.generate(prompt, drafter="none", max_new_tokens=60).text


if __name__ == "__main__":
    main()
