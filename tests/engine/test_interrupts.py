"""Interrupts: after Ctrl-C at any moment, locks are free, the model is restored, and the next output is right."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch

from copyspec import Engine
from copyspec.engine.asking.call_options import check_options
from tests.helpers.tiny import tiny_engine

ROOT = Path(__file__).parent.parent.parent

# The main thread is interrupted at random moments, between any two instructions, while another thread decodes.
SCRIPT = """
import random, signal, sys, threading, time
sys.path.insert(0, "tests")
import torch
torch.set_num_threads(2)
from tests.helpers.tiny import tiny_model, tiny_tokenizer
import copyspec
from copyspec.engine.running import threads
from copyspec.engine.logits.language import Language

Language.ngrams = None
threads.allowed = lambda: 2
model = tiny_model()
engine = copyspec.Engine(model, tiny_tokenizer())
OPTIONS = {"max_new_tokens": 10, "ignore_eos": True}
CALLS = [{}, {"draft_model": "layers:1"}, {"threads": 1, "drafter": "none"}]
expected = engine.generate("a b a b", **OPTIONS).token_ids
attributes = {name: sorted(vars(module)) for name, module in model.named_modules()}
config = model.config.to_dict()
wrong, done, made, armed = [], threading.Event(), [0], [False]

def decode():
    while not done.is_set():
        if engine.generate("a b a b", **OPTIONS).token_ids != expected:
            wrong.append(1)
        made[0] += 1

def interrupt(*_):
    if armed[0]:
        raise KeyboardInterrupt

other = threading.Thread(target=decode, daemon=True)
other.start()
random.seed(int(sys.argv[1]))
interrupts = 0
end = time.process_time() + float(sys.argv[2])
while time.process_time() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.06))
        signal.signal(signal.SIGALRM, interrupt)
        armed[0] = True
        while time.process_time() < end:  # an interrupt inside a __del__ is lost
            engine.generate("a b a b", **CALLS[interrupts % 3], **OPTIONS)
            for chunk in engine.stream("a b a b", **OPTIONS):
                pass
        armed[0] = False  # the last one may come when nobody expects it any more
    except KeyboardInterrupt:
        interrupts += 1
    if torch.get_num_threads() != 2:
        wrong.append(torch.get_num_threads())
        torch.set_num_threads(2)
before = made[0]
limit = time.monotonic() + 60
while made[0] < before + 2 and time.monotonic() < limit:
    time.sleep(0.01)
assert made[0] >= before + 2, "the other thread waits for a lock that nobody has"
done.set()
other.join(60)
for options in CALLS:
    assert engine.generate("a b a b", **options, **OPTIONS).token_ids == expected
assert {name: sorted(vars(module)) for name, module in model.named_modules()} == attributes
assert model.config.to_dict() == config and not wrong, wrong
print("interrupts", interrupts)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no interval timer")
def test_interrupts_at_any_moment() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, "0", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    name, _, count = done.stdout.strip().rpartition(" ")
    assert name == "interrupts" and int(count) >= 5, done.stderr


class Interrupt:
    """Raises KeyboardInterrupt at the start of the n-th call of an `__enter__` or `__exit__`, as a signal would."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        self.left -= frame.f_code.co_name in ("__enter__", "__exit__")
        if self.left == 0:
            raise KeyboardInterrupt


def whole(engine: Engine) -> tuple[int, ...]:
    return tuple(engine.generate("a b a b", max_new_tokens=3, ignore_eos=True).token_ids)


def stepwise(engine: Engine) -> tuple[int, ...]:
    options = check_options({"max_new_tokens": 3, "ignore_eos": True})
    sequence = engine.rewindable(lambda: engine.jobs("a b a b", None, options)[0][0], options)
    sequence.go_to([])
    while sequence.finish is None:
        sequence.step()
    sequence.close()
    return tuple(sequence.output)


@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
@pytest.mark.parametrize("decode", [whole, stepwise])
def test_an_interrupt_between_entering_and_leaving(decode: Callable[[Engine], tuple[int, ...]], attention: str) -> None:
    engine = tiny_engine()
    engine.model.config._attn_implementation_internal = attention  # passes swap the second one, which has no masks
    errors: list[BaseException] = []
    # A notebook keeps the last error. Its frames and their contexts may be freed in the middle of a later pass.
    engine.model.register_forward_pre_hook(lambda *_: errors.clear())

    expected, number, before = decode(engine), 0, sys.gettrace()
    decode(engine)  # everything that is created once exists now
    attributes = {name: sorted(vars(module)) for name, module in engine.model.named_modules()}
    try:
        while True:
            interrupt = Interrupt(number := number + 1)
            try:
                sys.settrace(interrupt)
                decode(engine)
                break
            except KeyboardInterrupt as error:
                errors.append(error)
            finally:
                sys.settrace(before)
            assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
            assert {name: sorted(vars(module)) for name, module in engine.model.named_modules()} == attributes
            assert engine.model.config._attn_implementation == attention
            assert decode(engine) == expected and not errors
    finally:
        sys.settrace(before)
    assert number > 10 and interrupt.left > 0
