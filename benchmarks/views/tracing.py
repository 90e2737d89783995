"""Measures the cost of recording a trace: CPU time of the same run with and without it, alternating.

python -m benchmarks.views.tracing [--model default] [--repeat 15]

The outputs of both are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
from time import process_time

import copyspec

TEXT = (
    "Next year we wants to sail to the the islands. The childrens have already drawn a map of every harbour. "
    "My brother, who live in the north, say that the wind there never stop. We has bought a old boat with a red sail, "
    "and every evening we repairs a other part of it. "
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--repeat", type=int, default=15)
    arguments = parser.parse_args()
    engine = copyspec.load(arguments.model, dtype="float32")
    engine.threads = 1
    ratios, outputs = [], set()
    for _ in range(arguments.repeat + 1):
        times = {}
        for trace in (False, True):
            started = process_time()
            result = engine.generate(f"Correct the grammar: {TEXT}", edit_source=TEXT, trace=trace, max_new_tokens=160)
            times[trace] = process_time() - started
            outputs.add(result.token_ids)
        ratios.append(times[True] / times[False])
    found = ratios[1:]  # the first one is warm-up
    spread = [round(each, 3) for each in statistics.quantiles(found, n=4)]
    print(json.dumps({"ratio": round(statistics.median(found), 3), "quartiles": spread, "equal": len(outputs) == 1}))


if __name__ == "__main__":
    main()
