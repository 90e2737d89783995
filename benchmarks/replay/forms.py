"""Replays recorded edits in many prompt forms: tokens per pass with and without the edited text as `edit_source`.

python -m benchmarks.replay.forms [--forms further]
                                  [--rows 200] [--nodes 32] [--json FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tokenizers import Tokenizer

from benchmarks.replay.methods import PromptLookup
from benchmarks.replay.prompt_forms import FITTED, FURTHER, HELD_OUT, Form
from benchmarks.replay.run import Tally, copyspec_drafter, replay, row_count
from benchmarks.transcripts import (
    EDIT_TASKS,
    Transcript,
    choose_rows,
    end_token,
    load_tokenizer,
    read_transcripts,
    tokenise,
)
from copyspec.budget import Budget
from kit import places
from kit.reporting import ratio, write_json

FORMS = {"held-out": HELD_OUT, "further": FURTHER, "fitted": FITTED}
TASK = "gec"  # any task whose first reference is the text being edited


def form_rows(form: Form, rows: Sequence[Transcript]) -> Iterator[Transcript]:
    """Yield rows whose prompts ask for the edits of `rows` in this form.

    Their reference is the text being edited, in the layout of the output if the prompt contains it so."""
    edits = [(row.references[0].strip(), row.output.strip()) for row in rows]
    for start in range(0, len(edits) - form.texts + 1, form.texts):
        chosen = edits[start : start + form.texts]
        prompt, output = form.make(chosen)
        _, unedited = form.make([(source, source) for source, _ in chosen])
        text = unedited.strip() if unedited.strip() in prompt else "\n".join(source for source, _ in chosen)
        yield replace(rows[start], task=TASK, set=form.name, prompt=prompt, references=(text,), output=output.strip())


def measure(form: Form, rows: Sequence[Transcript], tokenizer: Tokenizer, nodes: int) -> dict[str, float | str]:
    """Measure tokens per pass for one form."""
    eos, budget = end_token(tokenizer), Budget(nodes)
    tallies = {name: Tally() for name in ("given", "prompt_only", "prompt_lookup")}
    for row in form_rows(form, rows):
        complete, prompt_only = (tokenise(version, tokenizer, eos) for version in (row, replace(row, references=())))
        replay(copyspec_drafter(TASK, complete), complete.output, budget, tallies["given"])
        replay(copyspec_drafter(TASK, prompt_only), prompt_only.output, budget, tallies["prompt_only"])
        lookup = PromptLookup(prompt_only.prompt, [], prompt_only.output[-1])
        replay(lookup, prompt_only.output, budget, tallies["prompt_lookup"])
    figures = {name: round(ratio(tally.output_tokens, tally.calls), 4) for name, tally in tallies.items()}
    return {"form": form.name, **figures, "share": round(ratio(figures["prompt_only"], figures["given"]), 4)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay.forms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places.add_transcripts(parser)
    places.add_tokenizer(parser)
    parser.add_argument("--rows", type=row_count, default=200, help="number of edits in each form (default: 200)")
    parser.add_argument("--nodes", type=row_count, default=32, help="maximum draft nodes per pass (default: 32)")
    parser.add_argument("--forms", choices=FORMS, default="held-out", help="set of forms (default: held-out)")
    parser.add_argument("--json", default=None, help="write the figures to this file")
    options = parser.parse_args(arguments)
    rows = [row for row in read_transcripts(options.transcripts) if row.task in EDIT_TASKS and row.references]
    rows = [row for row in rows if int(row.group, 16) % 2 == (0 if options.forms == "fitted" else 1)]
    rows = sorted(choose_rows(rows, options.rows, seed=1), key=lambda row: row.id)[
        :: max(1, len({r.key for r in rows}))
    ]
    tokenizer = load_tokenizer(options.tokenizer)
    figures = []
    print(f"{'form':<26}{'given':>8}{'prompt only':>13}{'share':>8}{'prompt lookup':>15}")
    for form in FORMS[options.forms]:
        line = measure(form, rows, tokenizer, options.nodes)
        figures.append(line)
        print(
            f"{line['form']:<26}{line['given']:>8.2f}{line['prompt_only']:>13.2f}{line['share']:>8.3f}{line['prompt_lookup']:>15.2f}"
        )
    worst = min(figures, key=lambda line: float(line["share"]))
    print(f"worst: {worst['form']}, {worst['share']:.3f} of given")
    if options.json:
        write_json(options.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
