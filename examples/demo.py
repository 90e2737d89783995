"""Three tasks (correct a text, answer from passages, edit a text), each run by three decoders side by side.

make demo    (elsewhere: python -m examples.demo; exit status 0 means that all outputs were equal)

It uses smollm2 if fetched (`copyspec models fetch smollm2`), otherwise the small model of the package.
"""

from __future__ import annotations

import os
import textwrap

import torch

import copyspec
from copyspec.api import default_name
from copyspec.engine.running.threads import Load, held_by_others
from copyspec.models.loading import BUNDLED
from examples.demo_tasks import tasks
from examples.side_by_side import compared


def main() -> int:
    name = default_name()
    engine = copyspec.load(name, dtype="float32")  # in float32 outputs are equal; in half precision near-ties may flip
    print(f"Model: {name or engine.name}")
    load, all_equal = Load.read(), True
    for task in tasks(real=engine.name != str(BUNDLED)):
        print(f"\n{textwrap.fill(task.title, 80)}\n")
        text, equal = compared(engine, task)
        print(text)
        all_equal = all_equal and equal
    if load is not None and held_by_others(load) + torch.get_num_threads() > (os.cpu_count() or 1) + 0.5:
        print("\nOther programs used the processor meanwhile: do not quote these speeds.")
    return 0 if all_equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
