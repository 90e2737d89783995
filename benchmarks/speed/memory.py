"""Peak memory of `copyspec gec` on a file of any size, with the bundled model loaded.

python -m benchmarks.speed.memory --megabytes 1000 --folder /tmp --json OUT [--by-sentence]

A model would take hours, so the corrector is a function that fixes the one mistake in every 50th paragraph and returns
everything else unchanged. The file is made up of different paragraphs. Reported: the peak memory of the process with
the model loaded, after a small file, and after the large one, whose output is compared with the expected one byte by
byte; and the seconds spent on reading, segmentation, the journal and writing.
"""

from __future__ import annotations

import argparse
import filecmp
import resource
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import copyspec
from benchmarks.transcripts import machine, ratio, write_json
from copyspec.pipelines import FileOptions, FunctionCorrector, GECPipeline

SENTENCE = b"He has gone home, and nobody has seen him since the morning. "
WRONG, RIGHT = "He have gone home, and", "He has gone home, and"
WRONG_EVERY = 50  # paragraphs
PARAGRAPH_SENTENCES = 60  # 3.7 kB: many paragraphs, and more than one to a block that is read
SMALL_MEGABYTES = 20
SENTENCE_LIMIT = 400  # characters; what a model's context is to its own corrector


def make(path: Path, right: Path, megabytes: int) -> None:
    """A file of `megabytes` million bytes or a little more, and what is to become of it."""
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
    """MB (10^6 bytes) that the process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_000_000 * (1 if sys.platform == "darwin" else 1024)


def resident() -> float:
    """MB that the process has now, where the system tells; else its peak."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * resource.getpagesize() / 1_000_000 if pages.exists() else peak()


def correct(path: Path, output: Path, right: Path, by_sentence: bool) -> float:
    """Seconds. Raises what stopped it, and AssertionError where the output is not what it should be."""
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
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--by-sentence", action="store_true", help="sentences, not paragraphs, for the corrector")
    parser.add_argument("--folder", help="Where the files are made; it needs three times the size.")
    parser.add_argument("--json", help="file for the report")
    told = parser.parse_args(words)
    engine = copyspec.load()
    engine.generate("Correct the grammar: we was late.", max_new_tokens=16)
    loaded = resident()  # now, not at most: the peak of loading would hide what a file takes
    print(f"with the model loaded             {loaded:8.0f} MB")
    files = []
    with tempfile.TemporaryDirectory(dir=told.folder) as folder:
        file, output, right = (Path(folder, name) for name in ("a.txt", "b.txt", "c.txt"))
        for megabytes in (min(SMALL_MEGABYTES, told.megabytes), told.megabytes):
            make(file, right, megabytes)
            seconds = correct(file, output, right, told.by_sentence)
            above = peak() - loaded
            files.append({"megabytes": megabytes, "seconds": round(seconds, 1), "megabytes_above_model": round(above)})
            speed = f"{seconds:.0f} s, {ratio(megabytes, seconds):.0f} MB/s"
            print(f"after a file of {megabytes:8} MB       {peak():8.0f} MB, {speed}", flush=True)
    print(f"above the model                   {peak() - loaded:8.0f} MB")
    if told.json:
        command = shlex.join(["python", "-m", "benchmarks.speed.memory", *words])
        write_json(told.json, {"command": command, "machine": machine(), "files": files})
    return 0


if __name__ == "__main__":
    sys.exit(main())
