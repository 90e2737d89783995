"""Measures the peak memory of `copyspec gec` on a file of any size, with the bundled model loaded.

python -m benchmarks.speed.memory --megabytes 1000 --folder /tmp --json OUT [--by-sentence]

A model would take hours, so the corrector is a function that fixes the one mistake in every 50th paragraph and returns
everything else unchanged. All paragraphs of the file differ. The report gives the process's memory with the model
loaded, and its peak after a small file and after the large one, whose output is compared byte by byte with the expected
one; and the seconds spent on reading, segmentation, the journal and writing.
"""

from __future__ import annotations

import argparse
import filecmp
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import copyspec
from copyspec.pipelines import FileOptions, FunctionCorrector, GECPipeline
from kit.reporting import command_line, machine, ratio, resident, write_json

SENTENCE = b"He has gone home, and nobody has seen him since the morning. "
WRONG, RIGHT = "He have gone home, and", "He has gone home, and"
WRONG_EVERY = 50  # every so many paragraphs, one has a mistake
PARAGRAPH_SENTENCES = 60  # 3.7 kB per paragraph, so that a file has many, and a block that is read holds more than one
SMALL_MEGABYTES = 20
SENTENCE_LIMIT = 400  # characters; stands for the limit that a model's context sets


def make(path: Path, right: Path, megabytes: int) -> None:
    """Write a file of at least `megabytes` million bytes to `path`, and its expected correction to `right`."""
    paragraph = SENTENCE * PARAGRAPH_SENTENCES
    with path.open("wb") as file, right.open("wb") as corrected:
        number = 0
        while file.tell() < megabytes * 1_000_000:
            text = b"Number %d. " % number + paragraph + b"\r\n\r\n"
            corrected.write(text)
            if number % WRONG_EVERY == 0:
                text = text.replace(RIGHT.encode(), WRONG.encode(), 1)
            file.write(text)
            number += 1


def peak() -> float:
    """Peak memory of the process, in MB (10^6 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_000_000 * (1 if sys.platform == "darwin" else 1024)


def correct(path: Path, output: Path, right: Path, by_sentence: bool) -> float:
    """Correct the file and return the seconds. Raises AssertionError if the output is not the expected one."""
    corrector = FunctionCorrector(lambda text: text.replace(WRONG, RIGHT), name="one mistake")
    if by_sentence:
        corrector.by_sentence, corrector.limit = True, SENTENCE_LIMIT
    start = time.perf_counter()
    (report,) = GECPipeline(corrector).files(path, FileOptions(output=output, resume=False))
    seconds = time.perf_counter() - start
    if report.error is not None:
        raise report.error
    assert filecmp.cmp(output, right, shallow=False), "the output is not the corrected file"
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--by-sentence", action="store_true", help="give the corrector sentences instead of paragraphs")
    parser.add_argument("--folder", help="folder for the files; needs three times their size")
    parser.add_argument("--json", help="write the report to this file")
    options = parser.parse_args(arguments)
    engine = copyspec.load()
    engine.generate("Correct the grammar: we was late.", max_new_tokens=16)
    loaded = resident() / 1e6 or peak()  # the peak of loading would hide what a file takes
    print(f"with the model loaded             {loaded:8.0f} MB")
    files = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file, output, right = (Path(folder, name) for name in ("a.txt", "b.txt", "c.txt"))
        for megabytes in (min(SMALL_MEGABYTES, options.megabytes), options.megabytes):
            make(file, right, megabytes)
            seconds = correct(file, output, right, options.by_sentence)
            above = peak() - loaded
            files.append({"megabytes": megabytes, "seconds": round(seconds, 1), "megabytes_above_model": round(above)})
            speed = f"{seconds:.0f} s, {ratio(megabytes, seconds):.0f} MB/s"
            print(f"after a file of {megabytes:8} MB       {peak():8.0f} MB, {speed}", flush=True)
    print(f"above the model                   {peak() - loaded:8.0f} MB")
    if options.json:
        command = command_line("benchmarks.speed.memory", arguments)
        write_json(options.json, {"command": command, "machine": machine(), "files": files})
    return 0


if __name__ == "__main__":
    sys.exit(main())
