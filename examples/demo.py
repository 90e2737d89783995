"""Three tasks (correct a text, answer from passages, edit a text), each run by three decoders side by side.

make demo    (elsewhere: python -m examples.demo; exit status 0 means that all outputs were equal)

It uses smollm2 if fetched (`copyspec models fetch smollm2`), otherwise the small model of the package.
"""

from __future__ import annotations

import textwrap

import copyspec
from copyspec.models.loading import BUNDLED
from examples.demo_tasks import tasks
from examples.side_by_side import compared


def main() -> int:
    engine = copyspec.load(dtype="float32")  # in float32 outputs are equal; in half precision near-ties may flip
    all_equal = True
    for task in tasks(real=engine.name != str(BUNDLED)):
        print(f"\n{textwrap.fill(task.title, 80)}\n")
        text, equal = compared(engine, task)
        print(text)
        all_equal = all_equal and equal
    return 0 if all_equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
