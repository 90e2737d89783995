"""What a pipeline needs of a model, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from copyspec.client.asking import Asking
from copyspec.engine.asking.inputs import Input
from copyspec.engine.results import Chunk, NoAnswer, Result

Fluency = Callable[[str, tuple[str, ...]], Sequence[float]]
"""From the text before them to the log-probability, in nats, that a language model gives to each of some texts."""


class LanguageModel(Protocol):
    """A model in this process (`models.LocalModel`) or behind a URL (`copyspec.remote`)."""

    @property
    def name(self) -> str:
        """By which people give the model."""

    @property
    def identity(self) -> Mapping[str, object]:
        """What tells this model from others, for journals, as JSON values."""

    @property
    def own(self) -> str | None:
        """The short name of one of copyspec's own models, whose traits are known; None for others."""

    @property
    def corrects(self) -> bool:
        """Whether it was trained to correct and to quote single sentences."""

    @property
    def languages(self) -> Sequence[str]:
        """Codes of the languages that it was trained to correct; none: unknown."""

    @property
    def instruction(self) -> str:
        """By which it is asked for corrections, with `{text}`."""

    @property
    def is_encoder_decoder(self) -> bool: ...

    @property
    def has_template(self) -> bool:
        """Whether it takes chats, and so system messages."""

    @property
    def is_chat(self) -> bool:
        """Whether it may write something around the text that it is asked for."""

    @property
    def context(self) -> int | None:
        """Tokens at which longer texts are split; None: unknown, or no limit."""

    @property
    def fluency(self) -> Fluency | None:
        """The language model that it was made from, for a second opinion on its edits; None if that is not at hand."""

    def tokens(self, text: str) -> int:
        """Number of tokens of a text, or an estimate that is rather too high."""

    def count_tokens(self, text: str) -> int:
        """As `tokens`, counted if the model can be asked, which may take a request."""

    def frame(self, how: Asking) -> int:
        """Tokens of a prompt without its text."""

    def lost(self, text: str) -> str:
        """Characters of a text that the model cannot write."""

    def fits(self, prompt: str) -> bool:
        """Whether a prompt fits into the context, as far as that is known."""

    def load_correctors(self, names: Sequence[str]) -> Mapping[str, LanguageModel]:
        """Loads those of these models that write full corrections by themselves, for drafts to copy from."""

    def answers(self, inputs: Iterable[Input | None], how: Asking) -> Iterator[tuple[int, Result | NoAnswer]]:
        """Yield (index of the input, its answer), greedy, in the order in which they end. A None among the inputs means
        that none is available until one of those taken has its answer."""

    def answer(self, prompt: str, references: Sequence[str], max_new_tokens: int | None = None) -> Result:
        """The greedy answer to one prompt. Raises PromptTooLongError; OSError if a server fails."""

    def stream(
        self,
        prompt: str,
        references: Sequence[str],
        max_new_tokens: int | None = None,
        *,
        edit_source: str | None = None,
        system: str | None = None,
    ) -> Generator[Chunk, None, None]:
        """The same in pieces. `edit_source`: the text that the answer is a version of."""
