"""A model whose answers are known, for tests and benchmarks of pipelines."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from copyspec.client.asking import Asking
from copyspec.engine.asking.inputs import Input
from copyspec.engine.results import Chunk, NoAnswer, Result, Stats


class OracleModel:
    """Gives the next of `will` as its answer (a `LanguageModel`, as far as edits need one), and records the inputs."""

    name, own, has_template, is_chat = "oracle", None, True, True

    def __init__(self, *will: str, finish: str = "stop") -> None:
        self.will, self.finish = list(will), finish
        self.asked, self.how = list[Input](), list[Asking]()

    def tokens(self, text: str) -> int:
        return len(text)

    def answers(self, inputs: Iterable[Input | None], how: Asking) -> Iterator[tuple[int, Result | NoAnswer]]:
        for number, input_ in enumerate(inputs):
            if input_ is not None:
                self.asked.append(input_)
                self.how.append(how)
                yield number, self._result()

    def stream(
        self, prompt: str, references: Sequence[str], max_new_tokens: int | None = None, **options: Any
    ) -> Generator[Chunk, None, None]:
        self.asked.append(Input(prompt, references, edit_source=options["edit_source"], max_new_tokens=max_new_tokens))
        result = self._result()
        for line in result.text.splitlines(keepends=True):
            yield Chunk(line, (1,), content=line)
        yield Chunk("", (), result=result)

    def _result(self) -> Result:
        return Result(self.will.pop(0), (1,), self.finish, None, prompt_tokens=1, stats=Stats())  # type: ignore[arg-type]
