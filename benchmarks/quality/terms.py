"""Counts terms that a correction changes: ``python -m benchmarks.quality.terms [--model smollm2-correct]``.

Documents of sentences with a mistake each, about invented terms, compounds, names and identifiers, which stand in
several sentences. By default the corrector is a function that repairs the mistake and puts the nearest dictionary word
in place of every word that is in no list.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Iterator, Sequence
from string import ascii_lowercase

from copyspec.pipelines import Corrector, FunctionCorrector, GECPipeline, GuardOptions, ModelCorrector, ModelOptions
from copyspec.pipelines.guards.vocabulary import is_english, is_rare, spelt

TERMS_IN_SENTENCE = 5
SENTENCES_IN_DOCUMENT = 40
USES = 4  # places of each term in its document
_SENTENCES = (  # with the mistake, and its correction
    ("is", "are", "The {} and the {} [] read before a {}, while {} and {} wait."),
    ("have", "has", "Each {} [] a {} that holds the {} of {} or {}."),
    ("has", "have", "We [] seen {} with {}, and {} without {} or {}."),
    ("go", "goes", "If {} fails, the {} [] to {}, so that {} and {} stay."),
    ("was", "were", "They [] told that {} needs {} and that {} stops {} and {}."),
)
_STARTS = "bl br cl cr d dr f fl g gr h j k l m n p pl pr qu r s sk st t tr v w z".split()  # noqa: SIM905
_VOWELS = "a e i o u ai oo ee".split()  # noqa: SIM905
_ENDS = "b ck d g lm n nk p rk sh t x zz mf".split()  # noqa: SIM905
_HEADS = "fail over sub load page data time key lock tree graph node code file link".split()  # noqa: SIM905
_TAILS = "gate over stack mark flow ring walk tree bench root shard lane spool sieve".split()  # noqa: SIM905


def invented(rng: random.Random) -> str:
    """A term, a compound, a name, an abbreviation or an identifier that is in no word list."""
    while True:
        word = "".join(rng.choice(_STARTS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 2))) + rng.choice(_ENDS)
        kind = rng.randrange(5)
        if kind == 1:
            word = rng.choice(_HEADS) + rng.choice(_TAILS)
        elif kind == 2:
            word = word.capitalize()
        elif kind == 3:
            word = "".join(rng.choice("bcdfghjklmnpqrstvwxz") for _ in range(rng.randint(3, 4)))
        elif kind == 4:
            word = rng.choice(("max", "get", "is", "num", "cfg", "tmp")) + word
        if len(word) > 2 and not is_english(word) and not is_rare(word):
            return word


def documents(count: int, seed: int = 0) -> Iterator[tuple[list[tuple[str, str]], list[str]]]:
    """Yield documents, as (sentence, right sentence) pairs and terms, with `count` sentences in all."""
    rng = random.Random(seed)
    for _ in range(0, count, SENTENCES_IN_DOCUMENT):
        places = SENTENCES_IN_DOCUMENT * TERMS_IN_SENTENCE
        terms: list[str] = []
        while len(terms) < places // USES:
            terms += {invented(rng)} - {*terms}
        drawn = terms * USES
        rng.shuffle(drawn)
        pairs = []
        for at in range(0, places, TERMS_IN_SENTENCE):
            wrong, right, frame = rng.choice(_SENTENCES)
            sentence = frame.format(*drawn[at : at + TERMS_IN_SENTENCE])
            pairs.append((sentence.replace("[]", wrong), sentence.replace("[]", right)))
        yield pairs, terms


def nearest(word: str) -> str:
    """A dictionary word that looks like `word`."""
    small = word.lower()
    cuts = [(small[:at], small[at:]) for at in range(len(small) + 1)]
    for head, tail in cuts:
        for letter in ("", *ascii_lowercase):
            for made in (head + letter + tail[1:], head + letter + tail):
                if len(made) > 2 and made != small and is_english(made):
                    return str(made)
    spans = {small[a:b] for a in range(len(small)) for b in range(a + 3, len(small) + 1)}
    return max((span for span in spans if is_english(span)), key=len, default="that")


def vandal(pairs: Sequence[tuple[str, str]]) -> Callable[[str], str]:
    """A corrector that repairs every sentence, and replaces its unknown words."""
    right = dict(pairs)

    def correct(text: str) -> str:
        def other(match: re.Match[str]) -> str:
            word = match[0]
            return word if is_english(word) else nearest(word).capitalize() if word[0].isupper() else nearest(word)

        return re.sub(r"[^\W\d_]+", other, right.get(text, text))

    return correct


def changed(corrector: Corrector, pairs: Sequence[tuple[str, str]], guards: GuardOptions) -> tuple[int, int, int]:
    """Return the numbers of terms changed, of sentences repaired, and of words in no list, in one document."""
    text = "\n\n".join(wrong for wrong, _ in pairs) + "\n"
    written = GECPipeline(corrector, guards=guards, split=_whole)(text).text.strip().split("\n\n")
    lost = repaired = total = 0
    for made, (wrong, right) in zip(written, pairs, strict=True):
        terms = [word for word in spelt(wrong) if not is_english(word)]
        lost += sum(word not in spelt(made) for word in terms)
        total += len(terms)
        repaired += made == right
    return lost, repaired, total


def _whole(text: str) -> list[tuple[int, int]]:
    return [(0, len(text))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=400)
    parser.add_argument("--model", help="a corrector to ask, instead of the function")
    options = parser.parse_args()
    model: Corrector | None = None
    if options.model:
        import torch

        from benchmarks.quality.model import QualityModel

        model = ModelCorrector(QualityModel(options.model, torch.float32).engine, ModelOptions())
    for with_list in (False, True):
        counts = [0, 0, 0]
        for pairs, terms in documents(options.sentences):
            guards = GuardOptions(words=tuple(terms) if with_list else ())
            more = changed(model or FunctionCorrector(vandal(pairs)), pairs, guards)
            counts = [a + b for a, b in zip(counts, more, strict=True)]
        print(f"{'with' if with_list else 'without'} --words: {counts[0]} of {counts[2]} terms changed, "
              f"{counts[1]} of {options.sentences} sentences repaired")  # fmt: skip


if __name__ == "__main__":
    main()
