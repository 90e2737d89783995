"""ChatCopySpec: problems of ChatHuggingFace and HuggingFacePipeline solved, and LangChain's requirements of chat
models."""

from __future__ import annotations

import asyncio
import copy
import pickle
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from uuid import UUID, uuid4

import pytest

pytest.importorskip("langchain_core")

import torch
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, InvalidToolCall, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import ValidationError
from transformers import LogitsProcessor

import copyspec
from copyspec import Engine
from copyspec.pipelines.langchain import ChatCopySpec
from copyspec.pipelines.langchain.messages import encoded_prompt, merged, to_chat, without_tool_roles
from tests.helpers.texts import NO_SYSTEM_TEMPLATE, byte_level, llama

pytestmark = pytest.mark.usefixtures("steady_drafts")

PROMPTS = [f"The {word} sat on the mat" for word in ("cat", "dog", "star", "sea", "sky", "school", "day", "grammar")]
STRICT = (
    "{% for m in messages %}{% if m['role'] != ('user' if loop.index0 % 2 == 0 else 'assistant') %}"
    "{{ raise_exception('roles must take turns: user, assistant') }}{% endif %}"
    "<|{{ m['role'] }}|>\n{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@cache
def engine_with(template: str | None = None) -> Engine:
    tokenizer = byte_level() if template is None else byte_level(template=template)
    return Engine(llama(len(tokenizer)), tokenizer, name="tiny")


@pytest.fixture
def llm() -> ChatCopySpec:
    return ChatCopySpec(model=engine_with(), max_tokens=16)


def shown(engine: Engine, messages: list[object]) -> str:
    """Return the prompt as the model reads it, with control tokens."""
    return str(engine.tokenizer.decode(encoded_prompt(engine, messages).ids))  # type: ignore[arg-type]


@contextmanager
def counted(engine: Engine, slowly: float = 0.0) -> Iterator[Callable[[], int]]:
    """Count the model's forward passes, each extended by `slowly` seconds."""
    passes: list[None] = []

    def count(*_: object) -> None:
        time.sleep(slowly)
        passes.append(None)

    handle = engine.model.register_forward_hook(count)
    try:
        yield lambda: len(passes)
    finally:
        handle.remove()


def plain(prompt: str, **options: object) -> copyspec.Result:
    chat = [{"role": "user", "content": prompt}]
    return engine_with().generate(chat, drafter="none", **{"max_new_tokens": 16, **options})  # type: ignore[call-overload, no-any-return]


# Problems of the local Hugging Face integration, one test each.


def test_an_answer_holds_no_prompt(llm: ChatCopySpec) -> None:
    assert llm.invoke(PROMPTS[0]).content == plain(PROMPTS[0]).text
    assert PROMPTS[0] not in str(llm.invoke(PROMPTS[0]).content)


@pytest.mark.parametrize("how", ["call", "bound", "constructor"])
def test_stop_strings_of_several_tokens_end_answers_and_streams(how: str) -> None:
    text = plain(PROMPTS[0]).text
    stop = text[4:9]
    assert len(engine_with().codec.encode(stop).ids) > 1
    wanted = text[: text.index(stop)]
    made = ChatCopySpec(model=engine_with(), max_tokens=16, stop=[stop] if how == "constructor" else None)
    llm = made.bind(stop=[stop]) if how == "bound" else made
    options = {"stop": [stop]} if how == "call" else {}
    message = llm.invoke(PROMPTS[0], **options)
    assert message.content == wanted
    assert message.response_metadata["finish_reason"] == "stop"
    assert "".join(str(chunk.content) for chunk in llm.stream(PROMPTS[0], **options)) == wanted


def test_options_of_a_call_count_and_unknown_ones_are_named(llm: ChatCopySpec) -> None:
    sampled = llm.invoke(PROMPTS[0], temperature=2.0, seed=3).content
    assert sampled == plain(PROMPTS[0], temperature=2.0, seed=3).text != llm.invoke(PROMPTS[0]).content
    with pytest.raises(TypeError, match="unknown option 'bogus'"):
        llm.invoke(PROMPTS[0], bogus=1)
    with pytest.raises(TypeError, match=r"unknown option 'do_sample'; here it is temperature"):
        list(llm.stream(PROMPTS[0], do_sample=True))
    with pytest.raises(ValueError, match="max_tokens must be an integer >= 1, got 0"):
        llm.invoke(PROMPTS[0], max_tokens=0)
    with pytest.raises(TypeError, match="stop must be a str or a list of them; got int: 5"):
        llm.invoke(PROMPTS[0], stop=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the text holds a lone surrogate at character"):
        llm.invoke("\ud800")
    with pytest.raises(ValidationError, match="bogus"):
        ChatCopySpec(bogus=1)  # type: ignore[call-arg]


def test_two_names_of_one_option_are_named(llm: ChatCopySpec) -> None:
    with pytest.raises(ValidationError, match="'max_new_tokens' and 'max_tokens' are one option: give one of them"):
        ChatCopySpec(max_tokens=3, max_new_tokens=4)  # type: ignore[call-arg]
    assert ChatCopySpec(stop_sequences=["."], stop=None).stop == ["."]  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="max_new_tokens=4 and max_tokens=3 are two names for one limit"):
        llm.invoke(PROMPTS[0], max_tokens=3, max_new_tokens=4)
    answer = llm.invoke(PROMPTS[0], max_new_tokens=2)
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] == 2


def test_a_folder_given_as_a_path_is_the_model_of_that_name() -> None:
    llm = ChatCopySpec(model=Path("some") / "folder")
    assert llm.model == llm.model_name == str(Path("some") / "folder")
    assert llm._get_llm_string() == llm._get_llm_string(), "else no answer would be found in a cache"


def test_max_tokens_is_kept(llm: ChatCopySpec) -> None:
    usage = llm.invoke(PROMPTS[0]).usage_metadata
    assert usage is not None and usage["output_tokens"] == 16
    usage = llm.invoke(PROMPTS[0], max_tokens=5).usage_metadata
    assert usage is not None and usage["output_tokens"] == 5
    renamed = ChatCopySpec(model=engine_with(), max_new_tokens=4)  # type: ignore[call-arg]
    assert renamed.max_tokens == 4


def test_asyncio_is_native(llm: ChatCopySpec) -> None:
    async def main() -> None:
        wanted = [plain(prompt).text for prompt in PROMPTS]
        assert [message.content for message in await asyncio.gather(*map(llm.ainvoke, PROMPTS))] == wanted
        assert "".join([str(chunk.content) async for chunk in llm.astream(PROMPTS[0])]) == wanted[0]

    asyncio.run(main())


def test_usage_finish_reason_and_counters_come_with_answers_and_streams(llm: ChatCopySpec) -> None:
    prompt = "The cat sat on the mat"
    for answer in (llm.invoke(prompt), llm.invoke(prompt, max_tokens=200), _joined(llm.stream(prompt))):
        usage, metadata = answer.usage_metadata, answer.response_metadata
        assert usage is not None
        assert usage["input_tokens"] == llm.get_num_tokens_from_messages([HumanMessage(prompt)])
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        counters = metadata["copyspec"]
        details = usage["output_token_details"]
        assert details["accepted_prediction"] == counters["num_accepted_tokens"]  # type: ignore[typeddict-item]
        assert details["rejected_prediction"] == counters["num_draft_tokens"] - counters["num_accepted_tokens"]  # type: ignore[typeddict-item]
        assert metadata["model_name"] == "tiny" and metadata["finish_reason"] in ("stop", "length")
        assert counters["num_output_tokens"] == usage["output_tokens"]
    assert llm.invoke(prompt, max_tokens=2).response_metadata["finish_reason"] == "length"


def _joined(chunks: Iterator[object]) -> AIMessage:
    first, *rest = chunks
    return sum(rest, first)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("template", [None, STRICT], ids=["lenient", "strict"])
def test_any_message_may_be_the_last_one(template: str | None) -> None:
    engine = engine_with(template)
    llm = ChatCopySpec(model=engine, max_tokens=4)
    call = AIMessage("", tool_calls=[{"name": "search", "args": {"query": "mat"}, "id": "1"}])
    asked = [HumanMessage("Where?"), call, ToolMessage("on the mat", tool_call_id="1")]
    assert llm.invoke(asked).content is not None
    assert "on the mat" in shown(engine, asked)  # type: ignore[arg-type]
    begun = [HumanMessage("Where?"), AIMessage("The cat")]
    assert shown(engine, begun).endswith("The cat"), "the answer goes on"  # type: ignore[arg-type]
    assert llm.invoke(begun).content is not None
    assert shown(engine, [HumanMessage("hi"), call]).rstrip().endswith("<|assistant|>")


def test_content_blocks_are_read_as_text(llm: ChatCopySpec) -> None:
    blocks = [{"type": "text", "text": "The cat "}, "sat ", {"type": "text", "text": "on the mat"}]
    thought = {"type": "reasoning", "reasoning": "hm"}
    assert llm.invoke([HumanMessage([*blocks, thought])]).content == plain("The cat sat on the mat").text  # type: ignore[list-item]
    with pytest.raises(ValueError, match="block of type 'image_url'; the model reads text only"):
        llm.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "x"}}])])


def test_the_prompt_begins_once() -> None:
    ids = encoded_prompt(engine_with(), [HumanMessage("hi")]).ids
    assert ids.count(engine_with().tokenizer.bos_token_id) == 1


class Broken(LogitsProcessor):
    def __init__(self, after: int) -> None:
        self.after, self.calls = after, 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self.calls += 1
        if self.calls > self.after:
            raise ArithmeticError("broken")
        return scores


def test_errors_end_a_stream_at_once(llm: ChatCopySpec) -> None:
    with pytest.raises(ArithmeticError, match="broken"):
        list(llm.stream(PROMPTS[0], logits_processor=Broken(3)))
    with pytest.raises(ArithmeticError, match="broken"):
        llm.invoke(PROMPTS[0], logits_processor=Broken(3))


def batch(llm: ChatCopySpec) -> list[object]:
    return [message.content for message in llm.batch(PROMPTS, {"max_concurrency": len(PROMPTS)})]


def abatch(llm: ChatCopySpec) -> list[object]:
    return [message.content for message in asyncio.run(llm.abatch(PROMPTS))]  # type: ignore[arg-type]


def generate(llm: ChatCopySpec) -> list[object]:
    result = llm.generate([[HumanMessage(prompt)] for prompt in PROMPTS])
    assert len(result.run or ()) == len(PROMPTS)
    return [generations[0].text for generations in result.generations]


@pytest.mark.parametrize("together", [batch, abatch, generate], ids=lambda way: way.__name__)
def test_batches_share_passes(llm: ChatCopySpec, together: Callable[[ChatCopySpec], list[object]]) -> None:
    engine = engine_with()
    with counted(engine) as serial:
        wanted = [llm.invoke(prompt).content for prompt in PROMPTS]
        alone = serial()
    queue = engine.scheduler
    with counted(engine) as shared, ThreadPoolExecutor(1) as pool:
        with engine._lock:  # so that decoding starts when most have been submitted
            answers = pool.submit(together, llm)
            deadline = time.monotonic() + 30
            while queue.waiting + queue.running < len(PROMPTS) - 2:
                assert time.monotonic() < deadline
                time.sleep(0.001)
        assert answers.result() == wanted
        assert shared() < alone / 2


# Other requirements of LangChain's chat models.


def test_sixteen_threads_get_their_own_answers(llm: ChatCopySpec) -> None:
    prompts = [*PROMPTS, *(prompt.upper() for prompt in PROMPTS)]
    assert [message.content for message in llm.batch(prompts)] == [plain(prompt).text for prompt in prompts]


def test_streams_join_to_the_answer(llm: ChatCopySpec) -> None:
    chunks = list(llm.stream(PROMPTS[0]))
    assert len(chunks) > 1 and chunks[-1].chunk_position == "last"
    assert "".join(str(chunk.content) for chunk in chunks) == llm.invoke(PROMPTS[0]).content


def in_chain(llm: ChatCopySpec) -> Runnable[str, object]:
    return ChatPromptTemplate.from_template("{text}") | llm | StrOutputParser()


def alone(llm: ChatCopySpec) -> Runnable[str, object]:
    return llm


async def close_a_stream(program: Runnable[str, object], passes: Callable[[], int]) -> None:
    stream = program.stream(PROMPTS[0])
    next(stream)
    stream.close()  # type: ignore[attr-defined]


async def close_a_stream_of_asyncio(program: Runnable[str, object], passes: Callable[[], int]) -> None:
    stream = program.astream(PROMPTS[0])
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


async def cancel_a_call(program: Runnable[str, object], passes: Callable[[], int]) -> None:
    await _cancel(asyncio.create_task(program.ainvoke(PROMPTS[0])), passes)  # type: ignore[arg-type]


async def cancel_a_batch(program: Runnable[str, object], passes: Callable[[], int]) -> None:
    await _cancel(asyncio.create_task(program.abatch(PROMPTS[:3])), passes)  # type: ignore[arg-type]


async def cancel_who_reads_a_stream(program: Runnable[str, object], passes: Callable[[], int]) -> None:
    async def read() -> list[object]:
        return [piece async for piece in program.astream(PROMPTS[0])]

    await _cancel(asyncio.create_task(read()), passes)


async def run_out_of_time(program: Runnable[str, object], passes: Callable[[], int]) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(program.ainvoke(PROMPTS[0]), 0.3)


async def _cancel(task: asyncio.Task[object], passes: Callable[[], int]) -> None:
    while passes() < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


WAYS_OUT = [close_a_stream, close_a_stream_of_asyncio, cancel_a_call, cancel_a_batch, cancel_who_reads_a_stream]


@pytest.mark.parametrize("leave", [*WAYS_OUT, run_out_of_time], ids=lambda leave: leave.__name__)
@pytest.mark.parametrize("program", [alone, in_chain], ids=lambda program: program.__name__)
def test_who_leaves_frees_the_engine_within_one_step(
    program: Callable[[ChatCopySpec], Runnable[str, object]],
    leave: Callable[[Runnable[str, object], Callable[[], int]], Coroutine[object, object, None]],
) -> None:
    engine = engine_with()
    llm = ChatCopySpec(model=engine, max_tokens=150, model_kwargs={"drafter": "none", "ignore_eos": True})

    async def main() -> tuple[int, int]:
        with counted(engine, slowly=0.05) as passes:  # 150 passes take seven seconds, so that no call ends before
            await leave(program(llm), passes)
            before = passes()
            await asyncio.to_thread(_until_idle)
            return before, passes()

    before, after = asyncio.run(main())
    assert after - before <= 1 and after < 100
    assert llm.invoke(PROMPTS[1], max_tokens=16).content == plain(PROMPTS[1], ignore_eos=True).text


def _until_idle() -> None:
    deadline = time.monotonic() + 30
    while engine_with().scheduler.waiting or engine_with().scheduler.running:
        assert time.monotonic() < deadline, "a row is still decoded"
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            STRICT,
            "<|user|>\nOne.\nTwo.\n\nHi.\nThere?\n<|assistant|>\nYes.\nNo.\n<|user|>\nGo on.\n<|assistant|>\n",
        ),
        (None, "<|system|>\nOne.</s>\n<|system|>\nTwo.</s>\n<|user|>\nHi.</s>\n<|user|>\nThere?"),
    ],
    ids=["strict", "lenient"],
)
def test_messages_are_merged_where_a_template_is_strict(template: str | None, expected: str) -> None:
    messages = [SystemMessage("One."), SystemMessage("Two."), HumanMessage("Hi."), HumanMessage("There?")]
    messages += [AIMessage("Yes."), AIMessage("No."), HumanMessage("Go on.")]
    assert expected in shown(engine_with(template), messages)  # type: ignore[arg-type]


def test_templates_without_a_system_role_get_it_with_the_question() -> None:
    engine = engine_with(NO_SYSTEM_TEMPLATE)
    assert "<|user|>\nBe brief.\n\nHi" in shown(engine, [SystemMessage("Be brief."), HumanMessage("Hi")])


def test_messages_become_chats() -> None:
    call = AIMessage("Let me see.", tool_calls=[{"name": "search", "args": {"q": 1}, "id": "7"}])
    messages = [
        HumanMessage("Hi", name="ann"),
        call,
        ToolMessage([{"type": "json", "json": {"a": 1}}], tool_call_id="7"),
    ]
    chat = to_chat([*messages, ChatMessage("x", role="critic")])
    function = {"name": "search", "arguments": {"q": 1}}
    assert chat == [
        {"role": "user", "content": "Hi", "name": "ann"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"type": "function", "id": "7", "function": function}],
        },
        {"role": "tool", "content": '{"a": 1}', "tool_call_id": "7"},
        {"role": "critic", "content": "x"},
    ]
    assert [message["role"] for message in without_tool_roles(chat)] == ["user", "assistant", "user", "critic"]
    answered = [chat[0], {**chat[1], "content": ""}, chat[2]]
    assert without_tool_roles(answered) == [{"role": "user", "content": 'Hi\n{"a": 1}', "name": "ann"}]
    invalid = [
        InvalidToolCall(name=None, args="{not json", id="8", error=None),
        InvalidToolCall(name="search", args='{"q": ', id="9", error=None),
    ]
    said = "<tool_call>\n{not json\n</tool_call>", '<tool_call>\n{"name": "search", "arguments": {"q": }\n</tool_call>'
    for text in ("", "Let me see."):
        (shown_call,) = to_chat([AIMessage(text, invalid_tool_calls=invalid)])
        assert shown_call == {"role": "assistant", "content": "\n".join(filter(None, (text, *said)))}
    twice = merged([chat[1], chat[1], chat[2], chat[2]])
    assert [message["role"] for message in twice] == ["assistant", "tool", "tool"] and len(twice[0]["tool_calls"]) == 2  # type: ignore[arg-type]


def test_calls_among_the_blocks_of_other_models_are_shown_once() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"}
    blocks = [{"type": "text", "text": "Hm."}, call]
    (shown,) = to_chat([AIMessage(blocks, tool_calls=[{"name": "f", "args": {}, "id": "1"}])])  # type: ignore[arg-type]
    assert shown["content"] == "Hm." and len(shown["tool_calls"]) == 1  # type: ignore[arg-type]


def test_only_the_first_of_several_prompts_is_the_run_of_a_given_id(llm: ChatCopySpec) -> None:
    runs: list[UUID] = []

    class Starts(BaseCallbackHandler):
        def on_chat_model_start(self, *_: object, run_id: UUID, **__: object) -> None:
            runs.append(run_id)

    run_id = uuid4()
    llm.generate([[HumanMessage(prompt)] for prompt in PROMPTS[:3]], callbacks=[Starts()], run_id=run_id)
    assert run_id in runs and len(set(runs)) == 3


def test_models_without_a_template_say_so() -> None:
    tokenizer = byte_level(template=None)
    llm = ChatCopySpec(model=Engine(llama(len(tokenizer)), tokenizer))
    with pytest.raises(ValueError, match="has no chat template"):
        llm.invoke("hi")
    with pytest.raises(ValueError, match="every message is empty"):
        ChatCopySpec(model=engine_with()).invoke("")
    with pytest.raises(ValueError, match="there are no messages"):
        ChatCopySpec(model=engine_with()).invoke([])


def test_tokens_are_the_models_own(llm: ChatCopySpec) -> None:
    text = "The cat sat."
    assert llm.get_token_ids(text) == engine_with().codec.encode(text).ids
    assert llm.get_num_tokens(text) == len(llm.get_token_ids(text))
    assert llm.get_num_tokens_from_messages([HumanMessage(text)]) == len(
        encoded_prompt(engine_with(), [HumanMessage(text)]).ids
    )


def test_several_answers_and_timeouts(llm: ChatCopySpec) -> None:
    result = llm.generate([[HumanMessage(PROMPTS[0])]], n=3, temperature=1.0, seed=5)
    texts = [generation.text for generation in result.generations[0]]
    assert texts == [sample.text for sample in plain(PROMPTS[0], n=3, temperature=1.0, seed=5).samples]
    with pytest.raises(ValueError, match="n=2 cannot be streamed"):
        list(llm.stream(PROMPTS[0], n=2, temperature=1.0))
    with engine_with()._lock, pytest.raises(TimeoutError, match=r"within timeout=0.01 seconds"):
        llm.invoke(PROMPTS[0], timeout=0.01)
    with pytest.raises(ValueError, match=r"timeout must be a number above 0 \(seconds\), got -1"):
        llm.invoke(PROMPTS[0], timeout=-1)


def test_several_answers_are_given_inside_a_program_that_streams(llm: ChatCopySpec) -> None:
    """Its handlers want the tokens of every model, and several answers have no one stream of them."""
    options = {"n": 2, "temperature": 1.0, "seed": 5}
    program = RunnableLambda(lambda prompt: llm.invoke(prompt, **options).content)  # type: ignore[arg-type]

    async def main() -> list[object]:
        return [event["data"].get("output") async for event in program.astream_events(PROMPTS[0], version="v2")]

    assert asyncio.run(main())[-1] == plain(PROMPTS[0], **options).samples[0].text


def test_names_in_traces(llm: ChatCopySpec) -> None:
    params = llm._get_ls_params(stop=["x"])
    assert params["ls_provider"] == "copyspec" and params["ls_model_name"] == "tiny" and params["ls_stop"] == ["x"]
    for default in (ChatCopySpec(), ChatCopySpec(model="default")):
        assert default._get_ls_params()["ls_model_name"] == "copyspec-default"
    assert ChatCopySpec(model="some/model", stop="y")._get_ls_params()["ls_stop"] == ["y"]
    assert ChatCopySpec(model="some/model").traced_params()["model"] == "some/model"
    assert llm.profile == {
        "text_inputs": True,
        "image_inputs": False,
        "text_outputs": True,
        "tool_calling": False,
        "structured_output": False,
        "max_input_tokens": 256,
    }
    assert ChatCopySpec(model="some/model").profile is None, "nothing is loaded to find out"


def test_models_load_once_when_first_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def load(model: object, **options: object) -> Engine:
        asked.append((model, options))
        return engine_with()

    monkeypatch.setattr(copyspec, "load", load)
    llm = ChatCopySpec(model="some/model", dtype="float32", max_tokens=2)
    assert not asked
    llm.batch(PROMPTS[:2])
    assert ("some/model", {"dtype": "float32"}) in asked and len(asked) <= 2
    loaded = len(asked)
    assert copy.deepcopy(llm).engine is llm.engine is llm.model_copy(deep=True).engine and len(asked) == loaded
    assert pickle.loads(pickle.dumps(llm)).invoke("hi").text == llm.invoke("hi").text and len(asked) == loaded + 1
    answer = llm.invoke("hi", model="another/model")
    assert asked[-1] == ("another/model", {"dtype": "float32"})
    assert answer.response_metadata["model_name"] == "another/model"


def test_the_package_that_is_missing_is_named() -> None:
    import subprocess
    import sys

    code = "import sys; sys.modules['langchain_core'] = None\nimport {}"
    for module in ("copyspec.pipelines.langchain", "copyspec.retrievers.langchain"):
        done = subprocess.run([sys.executable, "-c", code.format(module)], capture_output=True, text=True, timeout=120)
        assert f"{module} needs langchain-core: pip install" in done.stderr
