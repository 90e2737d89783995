"""Several prompts in one batch, each with references of its own. Rows accept different numbers of tokens per call.

python -m examples.batch
"""

from __future__ import annotations

import copyspec
from copyspec.pipelines import quote_prompt

ASKED = [
    ("When is the library open?", "The library is open from nine to six. On Sundays it is closed."),
    ("Who repairs the bridge?", "The bridge is old. The town repairs it every spring with oak from the valley."),
    ("Where do the swans nest?", "Swans nest in the reeds behind the mill. They come back to the same place."),
]


def main() -> None:
    results = copyspec.generate(
        [quote_prompt(question, passage) for question, passage in ASKED],
        references=[[passage] for _, passage in ASKED],
        model="default",
        max_new_tokens=60,
    )
    for (question, _), result in zip(ASKED, results, strict=True):
        stats = result.stats
        print(f"{question} {result.text.strip()} ({stats.num_output_tokens} tokens, {stats.num_passes} passes)")


if __name__ == "__main__":
    main()
