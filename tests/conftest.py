"""Settings shared by all tests: one thread, no network, nothing of the user's settings and caches, hypothesis without
deadlines."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from copyspec import Engine
    from copyspec.budget import Budget, CostModel
    from copyspec.drafters.predictors.ngrams import NGrams, WordNGrams
    from copyspec.pipelines.langchain import ChatCopySpec
    from tests.helpers.chains import Seen

ROOT = Path(__file__).parent.parent

for name in [name for name in os.environ if name.startswith("GIT_")]:
    del os.environ[name]  # GIT_DIR, as hooks set it, would have tests commit to the developer's repository
os.environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
USERS = ("LANGSMITH_", "LANGCHAIN_TRACING", "OPENAI_", "COPYSPEC_API_KEY", "COPYSPEC_CORPORA")
for name in [name for name in os.environ if name.startswith(USERS) or name.lower().endswith("_proxy")]:
    del os.environ[name]  # tests would be traced, or reach servers of this machine through a proxy
os.environ["NO_PROXY"] = "*"  # nor the system's proxy, where that is set elsewhere
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["COPYSPEC_MODEL"] = "default"  # use the bundled model, whatever else is installed on this machine
os.environ["COPYSPEC_CACHE"] = str(ROOT / ".pytest_cache" / "copyspec")  # kept, so that SmolLM2 is converted once
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # where PyTorch uses AMX, bfloat16 layers stay its own
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait for others leave the core to another worker
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process that a test starts would compile the package again,
sys.dont_write_bytecode = False  # and each run the tests, which takes ten seconds

# A shell's background jobs ignore Ctrl-C, and processes that they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine must not fail a property test.
settings.register_profile("copyspec", deadline=None, derandomize=True)
settings.load_profile("copyspec")


def pytest_collection() -> None:
    """Set torch up where tests are collected. The process that only hands them to xdist's workers needs no torch."""
    import torch

    from copyspec.engine.logits import language
    from copyspec.targets.cpu.compiled import avoid_missing_tiles

    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):  # pytest itself has followed them by now
        os.environ.pop(name, None)
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton
    torch.set_num_threads(1)  # tiny models are slower on several threads, and the suite runs one worker per core
    avoid_missing_tiles()  # some tests use models in bfloat16 before copyspec does
    language.MAX_KEPT = 8  # the suite uses more tokenizers than a program
    language.NGrams = _ngrams  # type: ignore[assignment, misc]
    language.WordNGrams = SimpleNamespace(read=cache(language.WordNGrams.read))  # type: ignore[assignment, misc]
    gc.disable()  # until all tests are imported: it would visit the same objects again and again


def _ngrams(words: WordNGrams, encode: Any, vocab_size: int) -> NGrams:
    """Tiny models learn the n-grams of a few sentences, since those of English take half a second per tokenizer."""
    from copyspec.drafters.predictors.ngrams import NGrams
    from tests.helpers.texts import few_words

    return NGrams(few_words() if vocab_size < 1000 else words, encode, vocab_size)


@pytest.fixture(scope="module")
def steady_drafts() -> Iterator[None]:
    """Draft whatever it costs. With tiny models on a busy machine, measured times would decide what a test sees."""
    from copyspec.budget import Budget, CostModel
    from copyspec.decoding.controller import DraftController

    def budget(self: CostModel, rows: int, max_nodes: int, padded: object = None, **named: bool) -> Budget:
        return Budget(max_nodes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CostModel, "budget", budget)
        patch.setattr(DraftController, "advance", lambda self: None)  # nothing else ends `wants_draft`
        yield


@pytest.fixture(autouse=True)
def compiled_layers_are_entered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None] | None:
    """Fail where transformers calls its layers in a way that leaves out the compiled ones, which is slower in silence
    but for a line in the log. Returns what happens outside of tests."""
    if (linears := sys.modules.get("copyspec.targets.cpu.linears")) is None:
        return None
    gives_up: Callable[..., None] = linears.FastLinears._give_up_layers

    def fail(self: object) -> None:
        raise AssertionError("no pass has entered the compiled layers")

    monkeypatch.setattr(linears.FastLinears, "_give_up_layers", fail)
    return gives_up


@pytest.fixture(scope="module")
def engine() -> Engine:
    """A tiny model with random weights. A test module may override it with a fixture of its own."""
    from tests.helpers.tiny import tiny_engine

    return tiny_engine(name="tiny")


@pytest.fixture
def llm(engine: Engine) -> ChatCopySpec:
    """The engine as LangChain's chat model, limited to short answers."""
    from copyspec.pipelines.langchain import ChatCopySpec

    return ChatCopySpec(model=engine, max_tokens=3)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Records the prompts of LangChain's models and the references of each."""
    from tests.helpers.chains import watch

    return watch(monkeypatch)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk, with the byte-level tokenizer: `texts.engine()` as the command line loads it."""
    from tests.helpers.texts import byte_level, llama

    path = tmp_path_factory.mktemp("model")
    llama(len(byte_level())).save_pretrained(path)
    byte_level().save_pretrained(path)
    return path


@pytest.fixture
def named_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this folder the default model, for calls that name none."""
    monkeypatch.setenv("COPYSPEC_MODEL", str(folder))


@pytest.fixture(scope="module", autouse=True)
def shared_tokenizer_is_unchanged() -> Iterator[None]:
    """Fail in the module that adds tokens to it, instead of in a later one whose models get another size."""
    yield
    if (texts := sys.modules.get("tests.helpers.texts")) is not None:
        assert len(texts.byte_level().get_added_vocab()) == len(texts.SPECIAL), "copy the shared tokenizer first"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests in an event loop of their own, so that no plugin is needed."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # the garbage collector need not visit what was imported, over and over
    gc.set_threshold(100_000, 20, 50)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
