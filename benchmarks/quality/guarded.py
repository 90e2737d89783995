"""Measures what guards cost on wrong text: ``python -m benchmarks.quality.guarded --json OUT``.

The sentences of JFLEG dev, GMEG wiki dev and CoNLL-2014 go through the pipeline. Reported: GLEU over the source with
the default guards and with some of them off, for all sentences, for those on which the margins were chosen (every other
one), and for the rest; and how many of 2,100 correct texts change. The model corrects each text once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.quality.gleu import corpus_gleu
from benchmarks.quality.run import correct_texts, sample
from copyspec.engine.results import Change
from copyspec.pipelines import Corrector, GECPipeline, GuardOptions, Outcome, Refusal
from kit import places
from kit.reporting import kept_rows, read_rows, write_json

SETS = ("jfleg_dev", "gmeg_wiki_dev", "conll14")
CORRECT = "correct"  # correct texts: what is changed there is usually damage
GUARDS = {
    "without the guards on words": GuardOptions(allow_new_words=True, allow_swaps=True, precision=0.0),
    "without margins": GuardOptions(precision=0.0),
    "as they are": GuardOptions(),
}

OUTPUTS_OF = (
    "weights",
    "dtype",
    "instruction",
    "system",
    "max_new_tokens",
)  # fields of a corrector's identity on which its outputs depend
_TOGETHER = 32  # number of texts given to the model at once


class Remembering:
    """A corrector that corrects each text only once; with the file `keep`, once for all runs."""

    def __init__(self, corrector: Corrector, keep: Path | None = None) -> None:
        """Raises SystemExit if `keep` holds the outputs of another corrector."""
        self._corrector = corrector
        self._known: dict[str, Outcome] = {}
        self._keep = keep
        self.identity: Mapping[str, object] = corrector.identity
        for text, output, refusal, changes in kept_rows(keep, {name: self.identity.get(name) for name in OUTPUTS_OF}):
            measured = None if changes is None else [Change(*change) for change in changes]
            self._known[text] = Outcome(output, refusal and Refusal(*refusal), changes=measured)
        self.by_sentence, self.limit = corrector.by_sentence, corrector.limit
        self.calibration: str | None = getattr(corrector, "calibration", None)
        self.fluency = getattr(corrector, "fluency", None)

    def length(self, text: str) -> int:
        return self._corrector.length(text)

    def outcome(self, text: str) -> Outcome | None:
        """Return the outcome for a text; None if it was not corrected."""
        return self._known.get(text)

    def known(self, text: str) -> str:
        """Return the corrector's output for a text, or the text itself if the output was unusable."""
        output = self._known[text].text if text in self._known else None
        return output.removeprefix(" ") if output else text  # an output that was kept may begin with a space

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        waiting: dict[int, str] = {}
        index = -1
        for text in texts:
            if text is not None:
                index += 1
                if text in self._known:
                    yield index, self._known[text]
                    continue
                waiting[index] = text
            if waiting and (text is None or len(waiting) == _TOGETHER):
                yield from self._asked(waiting)
                waiting = {}
        if waiting:
            yield from self._asked(waiting)

    def _asked(self, waiting: Mapping[int, str]) -> Iterator[tuple[int, Outcome]]:
        places = list(waiting)
        for number, outcome in self._corrector.correct(list(waiting.values())):
            self._add(waiting[places[number]], outcome)
            yield places[number], outcome

    def _add(self, text: str, outcome: Outcome) -> None:
        self._known[text] = replace(outcome, result=None)
        if self._keep is not None:
            changes = None if outcome.changes is None else [(c.start, c.end, c.margin) for c in outcome.changes]
            refusal = outcome.refusal and (outcome.refusal.reason, outcome.refusal.detail)
            with self._keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps([text, outcome.text, refusal, changes]) + "\n")


def measure(corrector: Corrector, data: Path, name: str, count: int | None, seed: int = 0) -> dict[str, object]:
    """For each set of guards: sentences changed, and GLEU x 100 over the source, of all sentences and both halves."""
    rows = sample(read_rows(data / "gec" / f"{name}.jsonl.gz"), count, seed)
    sources, references = [row["source"] for row in rows], [row["references"] for row in rows]
    table: dict[str, object] = {"n": len(rows), "source": _gleu(sources, sources, references)}
    for label, outputs in _corrected(corrector, sources):
        gains = []
        for half in (slice(None), slice(0, None, 2), slice(1, None, 2)):
            before, wanted = sources[half], references[half]
            gains.append(_gleu(before, outputs[half], wanted) - _gleu(before, before, wanted))
        changed = sum(source != output for source, output in zip(sources, outputs, strict=True))
        table[label] = {"changed": changed, "gain": [round(gain, 2) for gain in gains]}
    return table


def measure_correct(corrector: Corrector, data: Path, count: int | None, seed: int = 0) -> dict[str, object]:
    """For each set of guards: the number of correct texts that are changed."""
    references = [row["references"][0] for row in sample(read_rows(data / "gec" / "jfleg_dev.jsonl.gz"), count, seed)]
    texts = [text for texts in correct_texts(data, references, count or 600, seed).values() for text in texts]
    changed = {
        label: sum(text != output for text, output in zip(texts, outputs, strict=True))
        for label, outputs in _corrected(corrector, texts)
    }
    return {"n": len(texts), "changed": changed}


def _corrected(corrector: Corrector, sources: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    remembering = Remembering(corrector)
    for label, guards in GUARDS.items():
        yield label, [done.text for done in GECPipeline(remembering, guards=guards)(sources)]


def _gleu(sources: Sequence[str], outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    return round(100 * corpus_gleu(sources, outputs, references), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="hub id or folder (default: the bundled model)")
    places.add_data(parser, "gec/")
    parser.add_argument("--rows", type=int, help="maximum sentences per set")
    parser.add_argument(
        "--sets", type=lambda value: value.split(","), default=[*SETS, CORRECT], help="sets to measure (default: all)"
    )
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    corrector = GECPipeline(options.model).corrector
    result = {
        name: measure_correct(corrector, options.data, options.rows)
        if name == CORRECT
        else measure(corrector, options.data, name, options.rows)
        for name in options.sets
    }
    print(json.dumps(result, indent=1))
    if options.json:
        write_json(options.json, result)


if __name__ == "__main__":
    main()
