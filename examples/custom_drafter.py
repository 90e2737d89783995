"""A drafter of your own, beside copying: it knows mistakes that your texts repeat, and what the model makes of them.

python -m examples.custom_drafter
"""

from collections.abc import Sequence

import copyspec


class KnownCorrections:
    """Drafts the edited text with the known corrections made, from where the output stands in it."""

    def __init__(self, context: copyspec.DraftContext) -> None:
        text = context.decode(context.sources[0].tokens)
        for wrong, right in (("childrens", "children"), ("informations", "information"), ("to to", "to")):
            text = text.replace(wrong, right)
        self._text, self._output = context.encode(text), list[int]()

    def propose(self, budget: copyspec.Budget) -> copyspec.DraftTree:
        last = self._output[-3:]
        matches = (at for at in range(len(last), len(self._text)) if self._text[at - len(last) : at] == last)
        at = next(matches, len(self._text))
        return copyspec.DraftTree.of_chain(self._text[at : at + budget.max_nodes])

    def accept(self, tokens: Sequence[int]) -> None:
        self._output.extend(tokens)


def main() -> None:
    text = "The childrens has read the informations about boats. We want to to sail. The childrens has no informations."
    engine, prompt = copyspec.load("default"), f"Correct the grammar: {text}"
    own = engine.generate(prompt, edit_source=text, drafter=["auto", KnownCorrections])
    copied = engine.generate(prompt, edit_source=text)
    assert own.text == copied.text
    print(own.text, f"{copied.stats.num_passes} passes, {own.stats.num_passes} with the drafter", sep="\n")


if __name__ == "__main__":
    main()
