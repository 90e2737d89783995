"""Models are loaded once and evicted least recently used first; threads, tasks and abandoned streams."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

import copyspec
from copyspec import api
from copyspec.api import _STATE
from copyspec.models import devices, loading
from tests.helpers.models import tiny
from tests.helpers.texts import CORPUS, byte_level, engine, llama

pytestmark = pytest.mark.usefixtures("steady_drafts")


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start each test without a loaded, configured or named model."""
    monkeypatch.setattr(_STATE, "registry", api.Registry())
    monkeypatch.setattr(_STATE, "configured", None)
    monkeypatch.setattr(_STATE, "named_default", False)
    monkeypatch.setattr(_STATE, "defaults", {})
    monkeypatch.delenv("COPYSPEC_MODEL", raising=False)
    monkeypatch.setattr(loading, "is_ready", lambda alias: False)
    yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three saved models."""
    paths = []
    for seed in range(3):
        folder = tmp_path_factory.mktemp(f"model{seed}")
        llama(len(byte_level()), seed).save_pretrained(folder)
        byte_level().save_pretrained(folder)
        paths.append(folder)
    return paths


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Records the models that were loaded from folders, in order."""
    seen: list[object] = []
    load = api._load_engine

    def counted(choice: loading.ModelChoice, *others: Any) -> copyspec.Engine:
        seen.append(choice.model)
        return load(choice, *others)

    monkeypatch.setattr(api, "_load_engine", counted)
    return seen


def test_a_second_call_does_not_load_again(folders: list[Path], loads: list[object]) -> None:
    first = copyspec.generate("the", model=folders[0], max_new_tokens=4)
    assert copyspec.generate("the", model=str(folders[0]), max_new_tokens=4).token_ids == first.token_ids
    assert copyspec.load(folders[0]).generate("the", max_new_tokens=4).token_ids == first.token_ids
    assert loads == [str(folders[0])]
    copyspec.load(folders[0], dtype="bfloat16")
    copyspec.load(folders[0], dtype=torch.bfloat16)
    assert len(loads) == 2


def test_two_ways_to_write_a_path_load_one_model(
    folders: list[Path], loads: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders[0].parent)
    link = tmp_path / "link"
    link.symlink_to(folders[0])
    short = f"./{folders[0].name}"
    assert len({copyspec.load(path) for path in (short, folders[0], f"{folders[0]}/", link)}) == 1
    assert loads == [short]
    copyspec.unload(folders[0])
    copyspec.load(link, tokenizer=short)
    copyspec.load(short, tokenizer=str(link))
    assert len(loads) == 2
    monkeypatch.chdir(tmp_path)
    with pytest.raises(copyspec.LoadError, match="there is no such folder"):
        copyspec.load(short)  # the name that stood for another model in the other directory


def test_a_gguf_file_of_another_directory_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.gguf").touch()
        monkeypatch.chdir(tmp_path / name)
        keys += [
            loading.ModelChoice(spelled).key()
            for spelled in ("model.gguf", "./model.gguf", str(tmp_path / name / "model.gguf"))
        ]
    assert keys[0] == keys[1] == keys[2] != keys[3] == keys[4] == keys[5]


def test_a_folder_named_like_a_short_name_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    short, folder, path = (loading.ModelChoice(name) for name in ("smollm2", "./smollm2", str(tmp_path / "smollm2")))
    assert short.key() != folder.key() == path.key()
    adapted = [loading.ModelChoice("base", adapter=name).key() for name in ("smollm2", "./smollm2")]
    assert adapted[0] == adapted[1], "an adapter has no short name"


def test_the_model_in_the_package_has_a_name(
    folders: list[Path], loads: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "BUNDLED", folders[2])
    copyspec.configure(model=folders[0])
    bundled = copyspec.load("default")
    assert bundled is copyspec.load(folders[2]) and bundled.name == str(folders[2])
    assert copyspec.generate("the", model="default", max_new_tokens=2).text
    assert loads == [str(folders[2])]
    with pytest.raises(ValueError, match="draft_model is the target itself"):
        bundled.generate("the", draft_model=bundled)
    assert copyspec.generate("the", draft_model="default", max_new_tokens=2).text
    copyspec.unload("default")
    monkeypatch.setattr(loading, "BUNDLED", folders[2] / "nothing")
    with pytest.raises(copyspec.LoadError, match="model='default' is the one in the package, and this build has no"):
        copyspec.load("default")


def test_the_least_recently_used_model_leaves(folders: list[Path], loads: list[object]) -> None:
    one, two, three = map(str, folders)
    for name in (one, two, one, three, one, two):
        copyspec.load(name)
    assert loads == [one, two, three, two]
    copyspec.configure(max_loaded=3)
    for name in (one, two, three, one):
        copyspec.load(name)
    assert loads == [one, two, three, two, three]


def test_unload_frees_the_model(folders: list[Path], loads: list[object]) -> None:
    loaded = copyspec.load(folders[0])
    model = weakref.ref(loaded.model)
    copyspec.unload(str(folders[0]))
    gc.collect()
    assert model() is None
    with pytest.raises(RuntimeError, match=r"was unloaded; load the model again with copyspec\.load"):
        loaded.generate("the")
    copyspec.load(folders[0])
    assert len(loads) == 2
    copyspec.unload()
    copyspec.load(folders[0])
    assert len(loads) == 3


def test_unload_takes_paths_and_names_what_is_loaded(folders: list[Path], loads: list[object]) -> None:
    copyspec.load(folders[0])
    with pytest.raises(ValueError, match=f"no such model is loaded: str: 'x'; loaded: '{folders[0]}'"):
        copyspec.unload("x")
    copyspec.unload(folders[0])
    with pytest.raises(ValueError, match="loaded: none"):
        copyspec.unload(folders[0])
    copyspec.unload()


def test_a_draft_model_is_loaded_once_and_counted(folders: list[Path], loads: list[object]) -> None:
    copyspec.unload()
    loads.clear()
    for dtype in ("float32", "auto"):
        copyspec.generate("the", model=folders[0], dtype=dtype, draft_model=folders[1], max_new_tokens=4)
    assert loads == [str(folders[0]), str(folders[1]), str(folders[0])]
    assert len(_STATE.registry.names()) == _STATE.registry.max_loaded == 2
    copyspec.unload()


def test_a_draft_model_does_not_replace_the_model_it_drafts_for(folders: list[Path], loads: list[object]) -> None:
    copyspec.configure(max_loaded=1)
    for _ in range(3):
        copyspec.generate("the", model=folders[0], draft_model=folders[1], max_new_tokens=4)
    assert loads == [str(folders[0]), str(folders[1])]
    copyspec.load(folders[2])
    assert _STATE.registry.names() == [str(folders[2])]


def test_a_loaded_model_answers_while_another_loads(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    copyspec.load(folders[0])
    load, loading_now, go_on = api._load_engine, threading.Event(), threading.Event()
    count: list[object] = []

    def slow(choice: loading.ModelChoice, *others: Any) -> copyspec.Engine:
        count.append(choice.model)
        loading_now.set()
        go_on.wait(10)
        return load(choice, *others)

    monkeypatch.setattr(api, "_load_engine", slow)
    threads = [threading.Thread(target=copyspec.load, args=(folders[1],)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert loading_now.wait(10)
    done = threading.Thread(target=copyspec.load, args=(folders[0],))
    done.start()
    done.join(10)
    assert not done.is_alive()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert count == [str(folders[1])]


def test_devices_that_are_not_there_are_named(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(copyspec.LoadError, match=r"device='cuda:99' is not there; .+ have cpu"):
        copyspec.load(folders[0], device="cuda:99")
    for wrong in ("meta", "vulkan"):  # a device without numbers, and one of another build of torch
        with pytest.raises(copyspec.LoadError, match=rf"device='{wrong}' is not there; .+ have cpu"):
            copyspec.load(folders[0], device=wrong)
    with pytest.raises(ValueError, match=r"device must be 'cpu', .+; got 'cudda'"):
        copyspec.load(folders[0], device="cudda")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(copyspec.LoadError, match="pip install accelerate"):
        copyspec.load(folders[0], device="auto")


@pytest.mark.parametrize(("wanted", "fits"), [("bfloat16", True), ("float16", False), (torch.bfloat16, True)])
def test_the_dtype_of_a_given_model_is_compared_whole(wanted: Any, fits: bool) -> None:
    model = copy.deepcopy(llama(len(byte_level()))).to(torch.bfloat16)
    with contextlib.nullcontext() if fits else pytest.raises(ValueError, match=r"the model's is torch\.bfloat16"):
        copyspec.load(model, tokenizer=byte_level(), dtype=wanted)


@pytest.mark.parametrize(
    ("saved", "options"),
    [
        (torch.bfloat16, {"device": "cpu"}),
        (torch.float16, {"device": torch.device("cpu")}),
        (torch.bfloat16, {"model_kwargs": {"device_map": "cpu"}}),
    ],
)
def test_models_are_computed_in_float32_on_a_cpu_unless_told_otherwise(
    saved: torch.dtype, options: dict[str, Any], tmp_path: Path
) -> None:
    if "model_kwargs" in options:
        pytest.importorskip("accelerate")
    model = copy.deepcopy(llama(len(byte_level()))).to(saved)
    model.save_pretrained(tmp_path)
    byte_level().save_pretrained(tmp_path)
    loaded = copyspec.load(tmp_path, **options).model
    assert loaded.dtype == torch.float32
    assert all(map(torch.equal, loaded.parameters(), (parameter.float() for parameter in model.parameters())))
    assert copyspec.load(tmp_path, device="cpu", dtype="bfloat16").model.dtype == torch.bfloat16


def test_numbers_that_a_model_computes_are_computed_in_float32(tmp_path: Path) -> None:
    tiny("gemma2", vocab_size=len(byte_level())).to(torch.bfloat16).save_pretrained(tmp_path)
    byte_level().save_pretrained(tmp_path)
    loaded = copyspec.load(tmp_path, device="cpu").model
    expected = type(loaded).from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        assert torch.equal(loaded(ids).logits, expected(ids).logits)


def test_a_model_that_does_not_fit_in_float32_stays_as_it_was_saved_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copy.deepcopy(llama(len(byte_level()))).to(torch.bfloat16).save_pretrained(tmp_path)
    byte_level().save_pretrained(tmp_path)
    monkeypatch.setattr(loading, "available_memory", lambda: 10_000)
    with caplog.at_level("WARNING", "copyspec"):
        assert copyspec.load(tmp_path, device="cpu").model.dtype == torch.bfloat16
    assert "stays in bfloat16" in caplog.text and "0.0 GB are available" in caplog.text


def test_devices_are_compared_whole() -> None:
    same = devices.same_device
    assert same("cuda", torch.device("cuda:1")) and same("cuda:1", torch.device("cuda:1"))
    assert not same("cuda:1", torch.device("cuda:10")) and not same("cpu", torch.device("cuda:0"))


def test_options_beside_a_configured_model_are_checked(folders: list[Path]) -> None:
    copyspec.configure(model=folders[0])
    with pytest.raises(ValueError, match="dtype must be one of"):
        copyspec.generate("the", dtype="float8")
    with pytest.raises(ValueError, match="on_unsupported must be"):
        copyspec.generate("the", on_unsupported="no")  # type: ignore[call-overload]
    assert copyspec.load(dtype="bfloat16").model.dtype == torch.bfloat16


def test_models_by_object_are_wrapped_once_and_left_as_they_came(loads: list[object]) -> None:
    model = llama(len(byte_level()))
    before = {name: value for name, value in vars(model).items()}
    for _ in range(2):
        result = copyspec.generate("the cat", CORPUS, model=model, tokenizer=byte_level(), max_new_tokens=12)
        assert result.token_ids == engine().generate("the cat", max_new_tokens=12).token_ids
    assert len(loads) == 1 and vars(model) == before
    copyspec.unload(model)
    assert copyspec.load(model, tokenizer=byte_level()).model is model
    assert len(loads) == 2


def test_configured_named_and_default_models(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, loads: list[object]
) -> None:
    monkeypatch.setattr(loading, "BUNDLED", folders[2])
    with caplog.at_level(logging.WARNING, logger="copyspec"):
        copyspec.generate("the", max_new_tokens=2)
        copyspec.generate("the", max_new_tokens=2)
    assert loads == [str(folders[2])]
    (line,) = [record.getMessage() for record in caplog.records]
    for way in ("default model", "model=...", "copyspec.configure(model=...)", "COPYSPEC_MODEL"):
        assert way in line
    monkeypatch.setenv("COPYSPEC_MODEL", str(folders[1]))
    copyspec.generate("the", max_new_tokens=2)
    assert loads[-1] == str(folders[1])
    copyspec.configure(model=folders[0], dtype="float32")
    copyspec.generate("the", max_new_tokens=2)
    assert loads[-1] == str(folders[0])
    copyspec.generate("the", model=folders[1], max_new_tokens=2)
    copyspec.configure(model=engine())
    assert copyspec.generate("the", max_new_tokens=2).token_ids == engine().generate("the", max_new_tokens=2).token_ids
    copyspec.configure()
    assert copyspec.load().name == str(folders[1])


def test_loading_writes_nothing(folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(path.name for path in folders[0].iterdir())
    copyspec.generate("the", CORPUS, model=folders[0], max_new_tokens=4)
    assert list(tmp_path.iterdir()) == []
    assert sorted(path.name for path in folders[0].iterdir()) == before


def test_many_threads_share_one_engine() -> None:
    tiny = engine()
    prompts = [f"{text} {i}" for i, text in enumerate(CORPUS * 3)]
    expected = [tiny.generate(prompt, max_new_tokens=12).token_ids for prompt in prompts]
    outputs: dict[int, Any] = {}

    def work(i: int) -> None:
        outputs[i] = tiny.generate(prompts[i], CORPUS, max_new_tokens=12).token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [outputs[i] for i in range(len(prompts))] == expected


def test_an_abandoned_stream_blocks_nobody_and_a_closed_one_frees_its_cache() -> None:
    tiny = engine()
    opened: list[Any] = []
    open_session = tiny._target.open

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(target, name)

        def open(self, prompts: Any, new_tokens: int = 0, *, keeps_states: bool = False) -> Any:
            opened.append(open_session(prompts, new_tokens))
            return opened[-1]

    target = tiny._target
    tiny._target = Watched()  # type: ignore[assignment]
    try:
        stream = tiny.stream("the cat", ignore_eos=True, max_new_tokens=60, drafter="none")
        next(stream)
        expected = engine(0).generate("the dog", max_new_tokens=8).token_ids
        assert tiny.generate("the dog", max_new_tokens=8).token_ids == expected
        closed: list[bool] = []
        session = opened[0]
        close = session.close
        session.close = lambda: (closed.append(True), close())
        stream.close()  # type: ignore[attr-defined]
        assert closed
        assert list(stream) == []
    finally:
        tiny._target = target


def test_interleaved_streams_do_not_disturb_each_other() -> None:
    tiny = engine()
    expected = [tiny.generate(text, max_new_tokens=20, ignore_eos=True).text for text in CORPUS]
    streams = [tiny.stream(text, CORPUS, max_new_tokens=20, ignore_eos=True) for text in CORPUS]
    texts = [""] * len(streams)
    going = dict(enumerate(streams))
    while going:
        for i, stream in list(going.items()):
            chunk = next(stream, None)
            if chunk is None:
                del going[i]
            else:
                texts[i] += chunk.text
    assert texts == expected


def test_agenerate_gives_what_generate_gives() -> None:
    tiny = engine()

    async def run() -> None:
        one = await copyspec.agenerate("the cat", CORPUS, model=tiny, max_new_tokens=12)
        assert one.token_ids == tiny.generate("the cat", max_new_tokens=12).token_ids
        several = await asyncio.gather(*(copyspec.agenerate(t, model=tiny, max_new_tokens=12) for t in CORPUS))
        assert [r.token_ids for r in several] == [r.token_ids for r in tiny.generate(CORPUS, max_new_tokens=12)]
        with copyspec.references("a"):
            assert (await copyspec.agenerate("the", model=tiny, max_new_tokens=2)).text
        chunks = [c async for c in await copyspec.agenerate("the cat", model=tiny, stream=True, max_new_tokens=12)]
        assert "".join(chunk.text for chunk in chunks) == one.text
        with pytest.raises(TypeError, match="did you mean 'temperature'"):
            await copyspec.agenerate("the cat", model=tiny, temprature=1)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="empty string"):
            await copyspec.agenerate("", model=tiny, stream=True)

    asyncio.run(run())


def test_a_cancelled_task_stops_decoding_within_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = engine()
    steps: list[int] = []
    started, go_on = threading.Event(), threading.Event()
    run_steps = copyspec.Engine.steps

    def slow(self: copyspec.Engine, *args: Any, **options: Any) -> Any:
        for outputs in run_steps(self, *args, **options):
            steps.append(1)
            started.set()
            go_on.wait(10)
            yield outputs

    monkeypatch.setattr(copyspec.Engine, "steps", slow)

    async def run() -> None:
        options: dict[str, Any] = {"model": tiny, "drafter": "none", "ignore_eos": True, "max_new_tokens": 200}
        task = asyncio.create_task(copyspec.agenerate("the cat", **options))
        await asyncio.to_thread(started.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    asyncio.run(run())  # waits for the worker thread
    assert len(steps) == 1


def test_a_cancelled_stream_is_closed() -> None:
    tiny = engine()

    async def run() -> int:
        count = 0
        options: dict[str, Any] = {"model": tiny, "drafter": "none", "ignore_eos": True, "max_new_tokens": 200}
        stream = await copyspec.agenerate("the cat", stream=True, **options)
        async for _ in stream:
            count += 1
            if count == 3:
                break
        await stream.aclose()  # type: ignore[attr-defined]
        return count

    assert asyncio.run(run()) == 3


def test_a_stream_cancelled_twice_ends_with_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = engine()
    go_on, started, ended = threading.Event(), threading.Event(), threading.Event()
    run_steps = copyspec.Engine.steps

    def slow(self: copyspec.Engine, *args: Any, **options: Any) -> Any:
        try:
            for outputs in run_steps(self, *args, **options):
                started.set()
                go_on.wait(10)
                yield outputs
        finally:
            ended.set()

    monkeypatch.setattr(copyspec.Engine, "steps", slow)

    async def read() -> None:
        async for _ in await copyspec.agenerate("the cat", model=tiny, stream=True, max_new_tokens=50, batch_size=3):
            pass

    async def run() -> None:
        task = asyncio.create_task(read())
        await asyncio.to_thread(started.wait, 10)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.02)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert ended.wait(10)


def test_without_a_network_an_unknown_model_fails_at_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def refuse(url: str, *_: object, **__: object) -> None:
        asked.append(url)
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", refuse)
    with pytest.raises(copyspec.LoadError, match=r"there is no connection to http.* \(refused\); check its name"):
        copyspec.load("nobody/no-such-model")
    assert len(asked) == 1


def test_a_default_found_once_is_not_looked_for_in_every_call(
    monkeypatch: pytest.MonkeyPatch, folders: list[Path]
) -> None:
    looked = list[object]()
    monkeypatch.setattr(loading, "is_ready", lambda alias: looked.append(alias) or True)
    monkeypatch.setattr(loading, "PREFERRED", "found")
    monkeypatch.setitem(loading.ALIASES, "found", loading.ALIASES["smollm2"])
    made = engine()
    monkeypatch.setattr(_STATE.registry, "engine", lambda choice: made)
    for _ in range(3):
        assert copyspec.load() is made
    assert len(looked) == 1
    monkeypatch.setenv("COPYSPEC_MODEL", str(folders[0]))
    chosen = list[object]()
    monkeypatch.setattr(_STATE.registry, "engine", lambda choice: chosen.append(choice.model) or made)
    copyspec.load()
    monkeypatch.delenv("COPYSPEC_MODEL")
    copyspec.unload()
    copyspec.load()
    assert chosen == [str(folders[0]), "found"] and len(looked) == 2


@pytest.mark.parametrize("spelled", ["~/{name}", "~"])
def test_a_path_from_the_home_folder_is_a_folder(
    spelled: str, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = spelled.format(name=folders[0].name)
    monkeypatch.setenv("HOME", str(folders[0].parent if "name" in spelled else folders[0]))
    loaded = copyspec.load(name, tokenizer=name)
    assert loaded is copyspec.load(folders[0], tokenizer=folders[0])
    with pytest.raises(copyspec.LoadError, match="model is '~nobody-here', and that home folder is not known"):
        copyspec.load("~nobody-here")


def test_a_folder_without_the_tokenizers_files_is_refused(tmp_path: Path) -> None:
    """transformers makes a T5 tokenizer without any file, whose vocabulary has special tokens and a space."""
    config = T5Config(vocab_size=200, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(copyspec.LoadError, match=r"makes no tokens of .+ but unknown ones; save the tokenizer's files"):
        copyspec.load(tmp_path, device="cpu")
