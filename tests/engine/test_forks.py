"""Forks: a child process decodes and searches without waiting, whatever the parent's threads were doing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_structure import FILES

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")

# Each child reports its result; one that hangs is ended by its alarm, with exit code -14.
SCRIPT = """
import os, signal, sys, threading, time
import torch
torch.set_num_threads(2)
sys.path.insert(0, "tests")
from tests.helpers.tiny import tiny_model, tiny_tokenizer
import copyspec
from copyspec.common import forks
from copyspec.retrievers.speculative.worker import Worker

torch.zeros(1 << 20).add_(1)  # the parent's threads have run
engine = copyspec.Engine(tiny_model(), tiny_tokenizer())
OPTIONS = {"max_new_tokens": 12, "ignore_eos": True}
expected = engine.generate("a b a b", **OPTIONS).token_ids
worker = Worker()
going = threading.Event()

def decode():
    while True:
        engine.generate("some text", drafter="none", **OPTIONS)

def ask():
    while True:
        engine.submit("some text", **OPTIONS).results()

def child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            print(work.__name__, "->", work(), flush=True)
            os._exit(0)
        except BaseException as error:
            print(work.__name__, "->", type(error).__name__, error, flush=True)
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        print(work.__name__, "-> killed by signal", -code, flush=True)

def generates():
    assert engine.generate("a b a b", **OPTIONS).token_ids == expected
    return engine.generate("a b a b", draft_model="layers:1", **OPTIONS).token_ids == expected

def runs_parallel_loops():
    return float(torch.ones(1 << 20).add_(1).sum()), torch.get_num_threads()

def asks_the_queue():
    calls = [engine.submit("a b a b", **OPTIONS) for _ in range(2)]
    return all(result.token_ids == expected for call in calls for result in call.results())

for target in (decode, ask):
    threading.Thread(target=target, daemon=True).start()

def reads_on():
    for outputs in waiting:
        pass

blocker, begun = threading.Event(), threading.Event()
running = worker.submit(lambda: (begun.set(), blocker.wait()))
pending = worker.submit(lambda: 1)
begun.wait()

def waits_for_a_search():
    return running.result()

def waits_for_a_search_that_never_began():
    return pending.result()

def searches():
    return worker.submit(lambda: 7).result()

for _ in range(3):
    child(generates)
waiting = engine.stream("a b a b", **{**OPTIONS, "max_new_tokens": 500})
next(waiting)
child(reads_on)  # at once: on a busy machine the call may be over after the next child
for work in (runs_parallel_loops, asks_the_queue, waits_for_a_search, waits_for_a_search_that_never_began, searches):
    child(work)

forks.FORK_TIMEOUT = forks._ATTEMPT = 0.2
taken = threading.Event()

def hold():
    with engine.forward_lock:
        taken.set()
        blocker.wait()

threading.Thread(target=hold, daemon=True).start()
taken.wait()
child(generates)
blocker.set()
assert engine.generate("a b a b", **OPTIONS).token_ids == expected
print("the parent goes on")
sys.stdout.flush()
os._exit(0)
"""


def test_children_of_a_process_whose_threads_decode() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    said = [line.split(" -> ", 1) for line in done.stdout.splitlines() if " -> " in line]
    assert [name for name, _ in said].count("generates") == 4, done.stderr
    assert [what for name, what in said if name == "generates"][:3] == ["True"] * 3
    answers = dict(said[:-1])
    assert answers["runs_parallel_loops"] == f"({2.0 * (1 << 20)}, 1)"
    assert answers["asks_the_queue"] == "True" and answers["searches"] == "7"
    assert answers["reads_on"].startswith("RuntimeError this process was forked while the call waited for a worker")
    assert answers["waits_for_a_search"].startswith("RuntimeError this process was forked while a search ran")
    assert answers["waits_for_a_search_that_never_began"].startswith("CancelledError")
    halfway = said[-1][1]
    assert halfway.startswith("RuntimeError this process was forked while another thread was decoding with 'Llama")
    assert halfway.endswith('or start processes with multiprocessing.get_context("spawn")')
    assert done.stdout.endswith("the parent goes on\n"), done.stderr


def test_forks_wait_for_every_lock_of_the_package() -> None:
    bare = [
        f"{name}: {line.strip()}"
        for name, path in FILES.items()
        for line in path.read_text().splitlines()
        if re.search(r"threading\.(R?Lock|Condition|(Bounded)?Semaphore|Barrier)\(\)", line)
        and not re.search(r"fork_safe\(|no fork waits for", line)
    ]
    assert bare == []
