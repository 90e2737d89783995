"""The peak memory of `copyspec gec` on a file of any size, with the bundled model loaded.

python -m benchmarks.files_memory --megabytes 1000 --folder /tmp

The corrector returns its input, since a model would take hours; the file is a text that is made up, each paragraph
different from the others. Reported: the peak of the process with the model loaded and after a small file, and after the
large one, whose output is compared with it byte by byte.
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

SENTENCE = b"He has gone home, and nobody has seen him since the morning. "
PARAGRAPH_SENTENCES = 60  # 3.7 kB: many paragraphs, and more than one to a block that is read
SMALL_MEGABYTES = 20


def make(path: Path, megabytes: int) -> None:
    """A file of `megabytes` million bytes or a little more."""
    paragraph = SENTENCE * PARAGRAPH_SENTENCES
    with path.open("wb") as file:
        number = 0
        while file.tell() < megabytes * 1_000_000:
            file.write(b"Number %d. " % number + paragraph + b"\r\n\r\n")
            number += 1


def peak() -> float:
    """MB that the process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1_000_000 if sys.platform == "darwin" else 1000)


def correct(path: Path, output: Path) -> float:
    """Seconds. Raises what stopped it, and AssertionError where the output is not the file."""
    pipeline = GECPipeline(FunctionCorrector(lambda text: text, name="identity"))
    start = time.perf_counter()
    (report,) = pipeline.files(path, FileOptions(output=output, resume=False))
    if report.error is not None:
        raise report.error
    assert filecmp.cmp(path, output, shallow=False), "the output differs from the file"
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--folder", help="Where the files are made; it needs three times the size.")
    told = parser.parse_args(arguments)
    engine = copyspec.load()
    engine.generate("Correct the grammar: we was late.", max_new_tokens=16)
    loaded = peak()
    print(f"with the model loaded             {loaded:8.0f} MB")
    with tempfile.TemporaryDirectory(dir=told.folder) as folder:
        file, output = Path(folder, "a.txt"), Path(folder, "b.txt")
        for megabytes in (min(SMALL_MEGABYTES, told.megabytes), told.megabytes):
            make(file, megabytes)
            seconds = correct(file, output)
            print(f"after a file of {megabytes:8} MB       {peak():8.0f} MB, {seconds:.0f} s", flush=True)
    print(f"above the model                   {peak() - loaded:8.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
