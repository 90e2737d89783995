"""Creates training examples (prompt, answer) on the fly from clean prose."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from training.lexicon import Lexicon
from training.noise import AIMED, ALL_NOISES, BY_NAME, NOISES, corrupt
from training.rules import Words
from training.strings import rare_string
from training.text import join_words, spaced, split_sentences, split_words, straight_quotes, well_formed

CORRECT = "Correct the grammar: "
QUOTE = "Quote the sentence that answers: "
OTHER_CORRECT = (
    "Fix the mistakes in this text: ", "Correct this text: ", "Fix the grammar and the spelling: ", "Proofread: ",
    "Correct the mistakes:\n ", "Please correct the following text.\n ", "Fix the grammar: ",
)  # fmt: skip
_OTHER_QUOTE = ("Which sentence answers this question? ", "Answer with a sentence of the text: ", "Quote the answer: ")
_OPENERS = (
    "However", "Therefore", "For example", "In fact", "In addition", "Of course", "On the other hand", "In conclusion",
    "First of all", "As a result", "In general", "Finally", "Furthermore", "Moreover", "For instance", "Unfortunately",
)  # fmt: skip
_ASKING = (
    "What", "Who", "When", "Where", "Why", "How", "How many", "How much", "Which", "In what year", "What year", "Whose",
    "What kind of", "What type of", "What is the name of", "Which of the following", "In which city", "Along with",
)  # fmt: skip
_GLUE = ("is", "was", "did", "does", "do", "were", "are", "the", "has", "can", "had", "would", "a", "of", "in", "for")

_LOOKS = 1500  # sentences searched for one kind of mistake
_PLAIN_LENGTH = 90  # maximum characters of a plain sentence
_QUOTED = frozenset('"“”')
_SELDOM = 4  # words with at most this count look like misspellings to a corrector
_PLAIN_COUNT = 150  # words with at least this count are common

DIALECT = re.compile(
    r"\b(?:ain['’]t|warn['’]t|wot|dat|dis|de|ter|ole|arter|thou|thee|thy|hath|doth|shalt|ye|[a-z]+in['’])(?![\w'’])"
    r"|(?<!\w)['’](?:em|er|im|is|ad|ave|ere|twas|tis)\b|[_\\<>{}=]|^:"
)  # and code


@dataclass(frozen=True)
class Mixture:
    """Shares of the kinds of examples, by number of examples, not tokens."""

    sentence: float = 0.52  # one sentence to correct
    paragraph: float = 0.06  # two to six sentences to correct
    quote_one: float = 0.08  # a question and one sentence
    quote_many: float = 0.31  # a question and a passage of two to nine sentences: hard, learned late
    jumble: float = 0.03  # frequent, rare and made-up words in random order, to be copied
    opening: float = 0.5  # share of jumbles at the start of training: where no word helps to guess the next one,
    # copying is learned at once; on prose alone the loss stays on a plateau of word statistics first
    spaced: float = 0.30  # share of the corrections in the spaced style of corpora
    rare: float = 0.25  # share of texts with made-up names, numbers and codes put in
    rare_quotes: float = 0.25  # the same share for passages to quote from, since quotes get names wrong most often
    clean: float = 0.18  # share of sentences without any mistake
    clean_paragraphs: float | None = None  # the same share for paragraphs; None: as for sentences
    sparse: float = 0.0  # share of the paragraphs with mistakes that have them in one or two sentences only
    tempting: float = 0.0  # share of the single sentences that are right but look wrong: rare words, bare nouns
    noisy_quotes: float = 0.0  # share of the passages with mistakes, which a quote must repeat
    open: bool = False  # include mistakes that no rule can undo
    many: tuple[float, ...] = (4, 28, 30, 20, 11, 7)  # weights of 0, 1, 2, ... mistakes in a sentence
    run_on: float = 0.0  # share of the boundaries between two sentences that are removed
    reworded: float = 0.25  # share of the corrections with a reworded instruction
    fewest: int = 2  # minimum sentences of a paragraph to correct
    sentences: int = 6  # maximum sentences of it
    longest: int = 320  # maximum characters of a sentence
    dialect: bool = True  # include sentences in dialect or old English, whose mistakes cannot be known
    plain: float = 0.0  # share of the single sentences that are short and use frequent words, like learners' texts
    aimed: float = 0.0  # share of the single sentences that are searched for after a kind of mistake is drawn
    lower: float = 0.0  # share of the texts with mistakes that have no capitals at all


@dataclass(frozen=True)
class Example:
    """The user's message, the model's answer (which begins with a space), and the kinds of mistakes."""

    prompt: str
    answer: str
    kinds: tuple[str, ...] = ()


class ExampleMaker:
    """Draws examples from paragraphs, depending only on the given random generator."""

    def __init__(self, paragraphs: Sequence[str], lexicon: Lexicon, mixture: Mixture | None = None) -> None:
        self.mixture = mixture = mixture or Mixture()
        self.paragraphs = [s for s in (split_sentences(p) for p in paragraphs) if s]
        if not mixture.dialect:
            self.paragraphs = [p for p in self.paragraphs if not any(DIALECT.search(s) for s in p)]
        self.sentences = [s for p in self.paragraphs for s in p if 12 <= len(s) <= mixture.longest and well_formed(s)]
        self.long = [p for p in self.paragraphs if len(p) >= 2 and len(" ".join(p)) < 3000]
        self.lexicon = lexicon
        self.plain = [s for s in self.sentences if len(s) <= _PLAIN_LENGTH and self._is_plain(s)] or self.sentences
        self.tempting = [s for s in self.sentences if self._is_tempting(s)] if mixture.tempting else []
        self.vocabulary = [word for word, count in lexicon.words.most_common(30000) if word.isalpha()]

    def draw(self, rng: random.Random, *, opening: bool = False) -> Example:
        """Draw one example, of a kind given by the mixture or by that of the start of training."""
        m = self.mixture
        if opening and rng.random() < m.opening:
            return self.jumble(rng)
        makers = (self.sentence, self.paragraph, self.quote_one, self.quote_many, self.jumble)
        weights = (m.sentence, m.paragraph, m.quote_one, m.quote_many, m.jumble)
        return rng.choices(makers, weights)[0](rng)

    # ---- corrections ----

    def sentence(self, rng: random.Random) -> Example:
        if self.tempting and rng.random() < self.mixture.tempting:
            words = split_words(self._clean(rng.choice(self.tempting), rng))
            text = (spaced if rng.random() < self.mixture.spaced else join_words)(words)
            return Example(CORRECT + text, " " + text)
        if self.mixture.aimed > 0 and rng.random() < self.mixture.aimed:
            example = self._aimed(rng)
            if example is not None:
                return example
        is_plain = self.mixture.plain > 0 and rng.random() < self.mixture.plain
        return self._correction([self._clean(rng.choice(self.plain if is_plain else self.sentences), rng)], rng)

    def _aimed(self, rng: random.Random) -> Example | None:
        """A sentence that has a place for a mistake of a drawn kind, with it (and maybe others) or unchanged."""
        noise = BY_NAME[rng.choices(list(AIMED), list(AIMED.values()))[0]]
        for _ in range(min(_LOOKS, 2 * len(self.sentences))):
            sentence = self._clean(rng.choice(self.plain if rng.random() < self.mixture.plain else self.sentences), rng)
            words = split_words(sentence)
            wrong = noise.apply(words, self.lexicon, rng)
            if wrong is None:
                continue
            kinds = [noise.name]
            if rng.random() < self.mixture.clean:
                wrong, kinds = words, []
            elif rng.random() < 0.3:
                wrong, more = corrupt(wrong, self.lexicon, rng, rng.randrange(1, 3), ALL_NOISES)
                kinds += more
            style = spaced if rng.random() < self.mixture.spaced else join_words
            return Example(CORRECT + style(wrong), " " + style(words), tuple(kinds))
        return None

    def paragraph(self, rng: random.Random) -> Example:
        sentences = rng.choice(self.long)
        count = min(len(sentences), rng.randrange(self.mixture.fewest, self.mixture.sentences + 1))
        start = rng.randrange(len(sentences) - count + 1)
        chosen = [s for s in sentences[start : start + count] if len(s) <= self.mixture.longest and well_formed(s)]
        if not chosen:
            return self.sentence(rng)
        straight = rng.random() < 0.7
        return self._correction([straight_quotes(s) if straight else s for s in chosen], rng)

    def _is_tempting(self, sentence: str) -> bool:
        """Whether the sentence begins with an article or has a word that is rare in the corpus."""
        words = [word.strip() for word in split_words(sentence)]
        seldom = any(w.isalpha() and w.islower() and self.lexicon.words[w] <= _SELDOM for w in words)
        return seldom or words[0] in ("The", "A", "An")

    def _is_plain(self, sentence: str) -> bool:
        words = [word.strip().lower() for word in split_words(sentence)]
        if len(words) < 5 or not _QUOTED.isdisjoint(words):
            return False
        return all(self.lexicon.words[w] >= _PLAIN_COUNT for w in words if w[:1].isalpha())

    def _clean(self, sentence: str, rng: random.Random) -> str:
        if rng.random() < 0.7:
            sentence = straight_quotes(sentence)
        if rng.random() < 0.06 and sentence[:1].isupper() and sentence[1:2].islower():
            first = sentence.split(" ")[0]
            if self.lexicon.words[first.lower()] > 4 * self.lexicon.capitals[first]:
                sentence = f"{rng.choice(_OPENERS)}, {sentence[0].lower()}{sentence[1:]}"
        return sentence

    def _correction(self, sentences: Sequence[str], rng: random.Random) -> Example:
        m = self.mixture
        right: Words = []
        wrong: Words = []
        kinds: list[str] = []
        is_paragraph = len(sentences) > 1
        perfect = rng.random() < (m.clean if m.clean_paragraphs is None or not is_paragraph else m.clean_paragraphs)
        spoilt = set(range(len(sentences)))
        if m.sparse and is_paragraph and rng.random() < m.sparse:
            spoilt = set(rng.sample(sorted(spoilt), rng.randrange(1, 3)))
        for place, sentence in enumerate(sentences):
            words = split_words(sentence)
            most = max(1, len(words) // 5)
            count = 0 if perfect or place not in spoilt else min(most, rng.choices(range(len(m.many)), m.many)[0])
            noisy, used = corrupt(words, self.lexicon, rng, count, ALL_NOISES if m.open else NOISES)
            if (
                m.run_on
                and right
                and not perfect
                and place in spoilt
                and rng.random() < m.run_on
                and wrong[-1].strip() == "."
            ):
                wrong = [*wrong[:-1], *([","] if rng.random() < 0.5 else [])]
                noisy = [_uncapital(noisy[0], self.lexicon), *noisy[1:]]
                kinds.append("run_on")
            if right:
                words, noisy = [" " + words[0].lstrip(), *words[1:]], [" " + noisy[0].lstrip(), *noisy[1:]]
            right, wrong, kinds = right + words, wrong + noisy, kinds + used
        if rng.random() < m.rare:
            right, wrong = _put_rare(right, wrong, rng)
        if m.lower and not perfect and rng.random() < m.lower:
            wrong = [word.lower() for word in wrong]
        style = spaced if rng.random() < m.spaced else join_words
        instruction = CORRECT if rng.random() >= m.reworded else rng.choice(OTHER_CORRECT)
        return Example(instruction + style(wrong), " " + style(right), tuple(kinds))

    def jumble(self, rng: random.Random) -> Example:
        words = [rng.choice(self.vocabulary) for _ in range(rng.randrange(4, 16))]
        for _ in range(rng.randrange(1, 6)):
            words.insert(rng.randrange(len(words)), rare_string(rng))
        if rng.random() < 0.6:
            # few words, often repeated: only the position tells where to continue, not the last word
            pool, words = rng.sample(words, rng.randrange(3, len(words) + 1)), []
            for _ in range(rng.randrange(6, 24)):
                words.append(rng.choice([word for word in pool if words[-1:] != [word]]))
        text = ("," if rng.random() < 0.2 else "").join(" " + word for word in words).strip()
        text = text[0].upper() + text[1:] + "."
        if rng.random() < 0.5:
            return Example(CORRECT + text, " " + text)
        return Example(f"{QUOTE}{self._question(text, rng)}\n {text}", " " + text)

    # ---- quotes ----

    def quote_one(self, rng: random.Random) -> Example:
        sentence = rng.choice(self.sentences)
        return self._quote([sentence], 0, [], rng) or self.sentence(rng)

    def quote_many(self, rng: random.Random) -> Example:
        passage = rng.choice(self.long)
        count = min(len(passage), rng.randrange(2, 10))
        start = rng.randrange(len(passage) - count + 1)
        sentences = [s for s in passage[start : start + count] if len(s) <= 320]
        breaks: list[int] = []
        if rng.random() < 0.25:
            other = rng.choice(self.long)[: rng.randrange(1, 5)]
            breaks.append(len(sentences))
            sentences = [*sentences, *(s for s in other if len(s) <= 320)]
        order = [i for i, s in enumerate(sentences) if len(s) > 30]
        rng.shuffle(order)
        for target in order[:4]:
            example = self._quote(sentences, target, breaks, rng)
            if example is not None:
                return example
        return self.sentence(rng)

    def _quote(self, sentences: Sequence[str], target: int, breaks: list[int], rng: random.Random) -> Example | None:
        if rng.random() < 0.7:
            sentences = [straight_quotes(s) for s in sentences]
        if rng.random() < self.mixture.rare_quotes:
            sentences = [_swap_rare(s, rng) for s in sentences]
        if self.mixture.noisy_quotes and rng.random() < self.mixture.noisy_quotes:
            sentences = [self._spoilt(s, rng) for s in sentences]
        question = self._question(sentences[target], rng)
        scores = [self._overlap(question, s) for s in sentences]
        if scores[target] < 1.3 * max([0.0, *(x for i, x in enumerate(scores) if i != target)]):
            return None  # another sentence fits as well, so the answer would be a guess
        gap = rng.choice(["\n ", "\n ", "\n"])
        passage = "".join((gap if i in breaks else " ") + s if i else s for i, s in enumerate(sentences))
        instruction = QUOTE if rng.random() < 0.8 else rng.choice(_OTHER_QUOTE)
        return Example(f"{instruction}{question}{gap}{passage}", " " + sentences[target])

    def _spoilt(self, sentence: str, rng: random.Random) -> str:
        """Insert one to three mistakes or use the spaced style of corpora: a quote repeats the text, right or wrong."""
        words, _ = corrupt(split_words(sentence), self.lexicon, rng, rng.randrange(0, 4), ALL_NOISES)
        return (spaced if rng.random() < 0.3 else join_words)(words) if words else sentence

    def _question(self, sentence: str, rng: random.Random) -> str:
        """A question: interrogatives and words of the sentence, in order or not, some inflected, some missing."""
        words = [w.strip() for w in split_words(sentence) if w.strip()[:1].isalnum()]
        if rng.random() < 0.5:
            length = rng.randrange(3, 11)
            start = rng.randrange(max(1, len(words) - length + 1))
            picked = words[start : start + length]
            if len(picked) > 4 and rng.random() < 0.5:
                cut = rng.randrange(len(picked) - 1)
                del picked[cut : cut + rng.randrange(1, 3)]
        else:
            content = [w for w in words if self._rarity(w) > 5.5] or words
            picked = [w for w in content if rng.random() < 0.6][: rng.randrange(2, 8)] or content[:3]
            if rng.random() < 0.3:
                rng.shuffle(picked)
            for _ in range(rng.randrange(0, 4)):
                picked.insert(rng.randrange(len(picked) + 1), rng.choice(_GLUE))
        if rng.random() < 0.3 and picked:
            i = rng.randrange(len(picked))
            picked[i] = picked[i][:-1] if picked[i].endswith("s") else picked[i] + rng.choice(["s", "ed", "ing"])
        lead = rng.choice(_ASKING) + (" " + rng.choice(_GLUE[:8]) if rng.random() < 0.7 else "")
        return f"{lead} {' '.join(picked)}?"

    def _rarity(self, word: str) -> float:
        """Information content of the word in nats, by its frequency in the corpus."""
        return 15.5 - math.log(self.lexicon.words[word.lower()] + self.lexicon.capitals[word] + 1)

    def _overlap(self, question: str, sentence: str) -> float:
        words = {w.strip().lower() for w in split_words(sentence)}
        return sum(self._rarity(w) ** 2 for w in {w.strip().lower() for w in split_words(question)} if w in words)


def _uncapital(word: str, lexicon: Lexicon) -> str:
    """Lower-case the word unless it is a name or "I"."""
    bare = word.strip()
    is_common = lexicon.words[bare.lower()] > 4 * lexicon.capitals[bare] and bare != "I"
    return word.replace(bare, bare[0].lower() + bare[1:]) if is_common and bare else word


def _put_rare(right: Words, wrong: Words, rng: random.Random) -> tuple[Words, Words]:
    """Replace one to three words by the same made-up strings in both texts."""
    right, wrong = list(right), list(wrong)
    # the short words hold the sentence together: without them it would have one more mistake
    once = [w for w in right[1:] if len(w) > 4 and w[0] == " " and w[1:].isalnum()]
    once = [w for w in once if right.count(w) == 1 and wrong.count(w) == 1]
    for old in rng.sample(once, min(len(once), rng.randrange(1, 4))):
        new = " " + rare_string(rng)
        right[right.index(old)] = new
        wrong[wrong.index(old)] = new
    return right, wrong


def _swap_rare(sentence: str, rng: random.Random) -> str:
    words = split_words(sentence)
    return join_words(_put_rare(words, words, rng)[0])
