"""The main job: a text corrected, a question answered from passages, a text changed; three decoders beside each other.

make demo    (elsewhere: python -m examples.demo; exit status 0 means that all outputs were equal)

With smollm2 (`copyspec models fetch smollm2`) a real model answers, without it the small one of the package.
"""

from __future__ import annotations

import textwrap

import copyspec
from copyspec.models.loading import BUNDLED
from examples.demo_tasks import tasks
from examples.side_by_side import compared


def main() -> int:
    engine = copyspec.load(dtype="float32")  # equality is promised here; in half precision near-ties may flip
    all_equal = True
    for task in tasks(real=engine.name != str(BUNDLED)):
        print(f"\n{textwrap.fill(task.title, 80)}\n")
        text, equal = compared(engine, task)
        print(text)
        all_equal = all_equal and equal
    return 0 if all_equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
