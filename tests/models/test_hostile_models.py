"""Model folders that would run code, ask questions, lead elsewhere or hang: part of `tests.fuzz.models`."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import thread_time

import pytest
import torch

import copyspec
from copyspec.models.bounds import bounded as bounded_model
from copyspec.models.files import is_plain
from copyspec.models.loading import ModelChoice, load_model
from copyspec.models.pretrained import Pretrained
from copyspec.pipelines.langchain import ChatCopySpec
from copyspec.retrievers import Corpora, HuggingFaceEmbedder, split_passages
from copyspec.retrievers import Document as Text
from copyspec.text.chat import ChatError, render
from copyspec.text.templates import SECONDS, bounded
from tests.fuzz import models as hostile_models
from tests.fuzz.kinds import Change, code, edit, files, some_of_each, weights
from tests.fuzz.numbers import numbers
from tests.fuzz.texts import TEMPLATES, tokenizers
from tests.helpers.commands import run
from tests.helpers.tiny import tiny_tokenizer

AUTO_MAP = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil", "AutoModel": "evil.Evil"}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    hostile_models.honest(folder)
    return folder


@pytest.fixture
def folder(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "model"))


@pytest.fixture(autouse=True)
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """A stdin that answers yes to everything and must not be read."""
    says = io.StringIO("y\n" * 9)
    monkeypatch.setattr(sys, "stdin", says)
    yield says
    assert says.tell() == 0, "stdin was read"


@pytest.fixture
def coded(folder: Path, tmp_path: Path) -> Path:
    """A folder that requires code of its own."""
    dict(code())["code: auto_map, unknown type"](folder, tmp_path / "ran")
    return folder


def tried(kinds: list[tuple[str, Change]], honest: Path, tmp_path: Path) -> dict[str, str]:
    """Load each folder and return the outcome; fail if code ran, or for an error other than LoadError."""
    ends = {}
    for kind, change in kinds:
        folder = Path(shutil.copytree(honest, tmp_path / "model"))
        change(folder, tmp_path / "ran")
        try:
            load_model(ModelChoice(str(folder), device="cpu"))
            ends[kind] = "loaded"
        except copyspec.LoadError as error:
            ends[kind] = str(error)
            assert "\n" not in ends[kind] and (str(folder) in ends[kind] or "device" in ends[kind]), kind
        assert not (tmp_path / "ran").exists(), kind
        shutil.rmtree(folder)
    return ends


def test_there_is_one_door() -> None:
    root = Path(__file__).parents[2]
    places = [
        path.relative_to(root).as_posix()
        for room in ("copyspec", "retrievers", "pipelines", "benchmarks", "training", "examples", "docs")
        for path in (root / room).rglob("*.py")
        if ".from_pretrained(" in path.read_text(encoding="utf-8")
    ]
    # Only GGUF reading may bypass the loader, in an empty folder; its result goes through the loader.
    assert sorted(places) == ["copyspec/models/gguf.py", "copyspec/models/pretrained.py"]


def test_no_code_of_a_folder_runs(honest: Path, tmp_path: Path) -> None:
    ends = tried(list(code()), honest, tmp_path)
    assert ends["code: lies there"] == ends["code: auto_map"] == "loaded", "a type of transformers needs none"
    assert ends["code: other package's attention"] == "loaded", "how attention is computed is not the folder's choice"
    for kind in (
        "auto_map, unknown type",
        "auto_map of a part",
        "kernel",
        "kernels by part",
        "auto_map of the tokenizer",
    ):
        assert "cannot be loaded without running code" in ends[f"code: {kind}"] or "tokenizer" in kind, kind


@pytest.mark.parametrize("name", ["AutoModel", "RagTokenizer", "pipeline"])
def test_what_is_no_tokenizer_loads_nothing(name: str, coded: Path, tmp_path: Path) -> None:
    edit(coded, "tokenizer_config.json", tokenizer_class=name)
    with pytest.raises(copyspec.LoadError, match=f"has tokenizer_class '{name}', which is not a tokenizer"):
        Pretrained(str(coded)).tokenizer()
    assert not (tmp_path / "ran").exists()


def test_no_pickle_is_read_and_no_other_folder(honest: Path, tmp_path: Path) -> None:
    ends = tried([weight for weight in weights() if "bomb" not in weight[0]], honest, tmp_path)
    assert set(ends.values()).isdisjoint({"loaded"})
    assert "pytorch_model.bin may run code when it is read: save it as safetensors" in ends["pickle: pytorch_model.bin"]
    assert "names a file outside of the folder (weight_map: '../outside.safetensors')" in ends["index: up"]
    assert "is not a .safetensors file" in ends["index: pickle"]
    assert "has transformers_weights='adapter_model.bin', which is not" in ends["weights elsewhere: pickle"]
    assert "below/x.safetensors is not a regular file" in ends["index: pipe in a folder below"]
    assert "makes it an adapter of another model" in ends["adapter"]


def test_broken_files_are_load_errors(honest: Path, tmp_path: Path) -> None:
    ends = tried(list(files()), honest, tmp_path)
    assert "config.json is not a regular file" in ends["pipe: config.json"]
    assert "model.safetensors is not a regular file" in ends["device: model.safetensors"]
    assert "config.json is nested too deeply" in ends["config.json: nested"]
    assert "config.json has more than 64 MB" in ends["config.json: 20 GB"]
    assert "generation_config.json is not JSON" in ends["generation_config.json: half"]


def test_absurd_values_are_load_errors(honest: Path, tmp_path: Path) -> None:
    kinds = dict(numbers())
    ends = tried(some_of_each(list(kinds.items()), 25, seed=1), honest, tmp_path)
    layers = "config: num_hidden_layers=1000000000"
    ends |= tried([(layers, kinds[layers])], honest, tmp_path)
    assert "config.json has num_hidden_layers=1000000000, more than 20,000" in ends[layers]
    texts = list(tokenizers())
    tried(some_of_each(texts, 25, seed=1), honest, tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"configuration_files": ["config.1.0.json"]}, "has configuration_files, one of which is read in its place"),
        (
            {"attribute_map": {"transformers_weights": "note"}, "note": "adapter_model.bin"},
            """renames settings (attribute_map: {"transformers_weights": "note"})""",
        ),
        ({"text_config": {"attribute_map": {"a": "b"}}}, "renames settings (text_config.attribute_map: "),
    ],
)
def test_no_setting_is_hidden_from_the_checks(changes: dict[str, object], says: str, folder: Path) -> None:
    edit(folder, "config.json", **changes)
    with pytest.raises(copyspec.LoadError, match=re.escape(says)):
        Pretrained(str(folder)).config()


@pytest.mark.parametrize(
    ("file", "changes", "says"),
    [
        ("tokenizer_config", {"sp_model_kwargs": {"model_file": "/dev/zero"}}, "names a file (sp_model_kwargs.model_"),
        ("tokenizer_config", {"init_inputs": ["/dev/zero"]}, "has init_inputs="),
        ("tokenizer_config", {"init_inputs": {"/dev/zero": 1}}, "has init_inputs="),
        ("tokenizer_config", {"added_tokens_decoder": {"4000000000": {}}}, "added token with the id '4000000000'"),
        ("tokenizer_config", {"fast_tokenizer_files": {"../tokenizer.1.0.json": 1}}, "file that is not in the folder"),
        ("special_tokens_map", {"vocab_file": "/dev/zero"}, "has vocab_file='/dev/zero', which is not a special token"),
        ("special_tokens_map", {"merges": "/dev/zero"}, "has merges='/dev/zero', which is not a special token"),
        ("special_tokens_map", {"source_spm": "/dev/zero"}, "has source_spm='/dev/zero', which is not a special token"),
    ],
)
def test_a_tokenizer_opens_no_other_files(file: str, changes: dict[str, object], says: str, folder: Path) -> None:
    edit(folder, f"{file}.json", **changes)
    with pytest.raises(copyspec.LoadError, match=re.escape(f"{file}.json ") + ".*" + re.escape(says)):
        Pretrained(str(folder)).tokenizer()


def test_a_vocabulary_elsewhere_is_not_opened(folder: Path) -> None:
    before = Pretrained(str(folder)).tokenizer().get_vocab()
    edit(folder, "tokenizer_config.json", vocab="/dev/zero", merges="/dev/zero", vocab_file="/dev/zero")
    pretrained = Pretrained(str(folder))
    assert pretrained._check_tokenizer() == dict.fromkeys(("vocab_file", "vocab", "merges"))
    assert pretrained.tokenizer().get_vocab() == before


def test_the_tokenizers_file_of_a_version_is_checked(folder: Path) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    bomb = {"type": "Split", "pattern": {"Regex": "(a*)*b"}, "behavior": "Isolated", "invert": False}
    (folder / "tokenizer.1.0.json").write_text(json.dumps(data | {"pre_tokenizer": bomb}))
    Pretrained(str(folder)).tokenizer()
    edit(folder, "tokenizer_config.json", fast_tokenizer_files=["tokenizer.1.0.json"])
    with pytest.raises(copyspec.LoadError, match="an expression that takes too long on some texts"):
        Pretrained(str(folder)).tokenizer()


def test_a_model_is_no_larger_than_its_weights() -> None:
    with pytest.raises(ValueError, match="more weights than its 100 bytes can hold"), bounded_model(100):
        torch.nn.Linear(1 << 15, 1 << 15, device="meta")
    torch.nn.Linear(1 << 15, 1 << 15, device="meta")
    with bounded_model(1 << 27):  # a bit per weight, for weights registered when created and when read
        layer = torch.nn.Linear(1 << 15, 1 << 15, bias=False, device="meta")
        layer.weight = torch.nn.Parameter(layer.weight.detach())


@pytest.mark.parametrize(
    ("kept", "lacks"),
    [
        (
            lambda name: "layers.0.self_attn.q_proj" not in name,
            r"lacks 1 weights, 'model\.layers\.0\.self_attn\.q_proj",
        ),
        (lambda name: "norm" not in name, r"lacks 5 weights, 'model\.layers\.0\.input_layernorm\.weight' for one"),
        (lambda name: False, r"lacks \d+ weights"),
    ],
)
def test_weights_that_are_missing_are_not_made_up(kept: Callable[[str], bool], lacks: str, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if kept(name)}
    save_file(tensors or {"x": torch.ones(1)}, path, metadata={"format": "pt"})
    with pytest.raises(copyspec.LoadError, match=lacks):
        load_model(ModelChoice(str(folder), device="cpu"))


def test_files_of_weights_are_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "part.safetensors"}}')
    with pytest.raises(copyspec.LoadError, match=r"model\.safetensors\.index\.json has no metadata"):
        load_model(ModelChoice(str(folder), device="cpu"))
    index.write_text('{"metadata": {}, "weight_map": {"a": "part.safetensors"}}')
    (folder / "part.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(copyspec.LoadError, match=r"part\.safetensors is a pointer of Git LFS; .+: git lfs pull"):
        load_model(ModelChoice(str(folder), device="cpu"))
    (folder / "part.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(copyspec.LoadError, match=r"part\.safetensors cannot be read: "):
        load_model(ModelChoice(str(folder), device="cpu"))


def test_weights_of_another_shape_are_named(folder: Path) -> None:
    edit(folder, "config.json", intermediate_size=65)
    with pytest.raises(copyspec.LoadError, match=r"has '.+mlp.+' of shape \[.*64.*\], and the model needs \[.*65"):
        load_model(ModelChoice(str(folder), device="cpu"))


@pytest.mark.parametrize(
    "name",
    [
        *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "additional_chat_templates/a.jinja"),
        *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "source.spm", "entity_vocab.json", "bpe.codes"),
    ],
)
def test_files_beside_the_tokenizer_have_a_largest_size(name: str, folder: Path) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).touch()
    os.truncate(folder / name, 20 << 30)
    with pytest.raises(copyspec.LoadError, match=rf"{Path(name).name} has more than \d+ MB"):
        Pretrained(str(folder)).tokenizer()


def test_a_vocabulary_from_the_hub_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "vocab.json"
    place.touch()
    os.truncate(place, 20 << 30)
    monkeypatch.setattr(Pretrained, "_find", lambda self, name: place if name == place.name else None)
    with pytest.raises(ValueError, match=r"vocab\.json has more than 128 MB"):
        Pretrained("org/model")._check_tokenizer()


@pytest.mark.parametrize(
    "load",
    [
        lambda folder, good: copyspec.load(folder),
        lambda folder, good: copyspec.generate("a", model=folder),
        lambda folder, good: copyspec.generate("a", model=good, draft_model=folder),
        lambda folder, good: copyspec.generate("a", model=good, tokenizer=folder),
        lambda folder, good: HuggingFaceEmbedder(folder),
        lambda folder, good: ChatCopySpec(model=folder).invoke("a"),
        lambda folder, good: Pretrained(folder).config(),
    ],
)
def test_a_folder_that_needs_code_is_refused_by_every_way_in(
    load: Callable[[str, str], object], coded: Path, honest: Path, tmp_path: Path
) -> None:
    edit(coded, "tokenizer_config.json", auto_map=["evil.EvilTokenizer", None], tokenizer_class="EvilTokenizer")
    with pytest.raises(copyspec.LoadError, match=r"code of its own: (tokenizer_)?config.json has auto_map") as raised:
        load(str(coded), str(honest))
    for said in (str(coded), "evil.Evil", "Take a model that needs none", "in Python with trust_remote_code=True"):
        assert said in str(raised.value)
    assert not (tmp_path / "ran").exists()


def test_commands_run_no_code_and_have_no_option_for_it(
    coded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("He go home.")
    edit(coded, "tokenizer_config.json", auto_map=["evil.EvilTokenizer", None], tokenizer_class="EvilTokenizer")
    text, where = str(tmp_path / "text.txt"), ["--dir", str(tmp_path / "corpora")]
    assert run(capsys, "index", "add", "words", text, *where)[0] == 0
    for command in (
        ["gec", text, "--model", str(coded)],
        ["edit", "--instruction", "Correct it.", text, "--model", str(coded)],
        ["generate", "a", "--model", str(coded)],
        ["generate", "a", "--draft-model", str(coded)],
        ["rag", "Who goes home?", "--index", "words", "--model", str(coded), *where],
        ["index", "add", "t", text, "--kind", "tokens", "--model", str(coded), *where],
        ["index", "add", "d", text, "--kind", "dense", "--encoder", str(coded), *where],
    ):
        exit_code, _, said = run(capsys, *command)
        assert exit_code == 2 and str(coded) in said and "Do you wish" not in said, command
        assert run(capsys, *command, "--trust-remote-code")[0] == 2
    assert not (tmp_path / "ran").exists()


def test_only_trust_in_python_runs_code(coded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    with pytest.raises(TypeError, match="trust_remote_code must be True or False; got str: 'yes'"):
        copyspec.load(str(coded), trust_remote_code="yes")  # type: ignore[arg-type]
    config = Pretrained(str(coded), trust_remote_code=True).config()
    assert type(config).__name__ == "EvilConfig" and (tmp_path / "ran").exists(), "what the other tests look for"


def test_a_question_of_transformers_is_an_error_and_comes_back_afterwards(folder: Path) -> None:
    from transformers import dynamic_module_utils

    before = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    pretrained = Pretrained(str(folder))
    with pretrained._one_line_errors(), pytest.raises(ValueError, match="execute custom code"):
        dynamic_module_utils.resolve_trust_remote_code(None, "a", has_local_code=False, has_remote_code=True)
    assert before == dynamic_module_utils.TIME_OUT_REMOTE_CODE > 0


def test_links_to_files_are_followed_as_in_the_cache_of_the_hub(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in folder.iterdir():
        (linked / path.name).symlink_to(path)
    assert load_model(ModelChoice(str(linked), device="cpu"))[0].config.model_type == "llama"


def test_an_index_chooses_no_encoder(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpora = Corpora(tmp_path / "corpora")
    corpora.add_dense("d", split_passages(Text("t", "He goes home.")), HuggingFaceEmbedder(honest, prefix="a: "))
    with pytest.raises(ValueError, match=r"made with the encoder '.+honest.+', which is loaded only when you name it"):
        corpora.open("d")
    assert corpora.open("d", encode=honest)[0].search("home", 1)[0].text == "He goes home."
    asked = ["rag", "Who goes home?", "--index", "d", "--dir", str(tmp_path / "corpora"), "--max-new-tokens", "4"]
    exit_code, out, said = run(capsys, *asked)
    assert (exit_code, out) == (2, "") and f"give --encoder '{honest}'" in said
    assert run(capsys, *asked, "--encoder", str(honest))[0] == 0
    monkeypatch.setenv("COPYSPEC_MODEL", str(honest))
    assert corpora.open("d")[0].search("home", 1)[0].text == "He goes home."


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_templates_are_bounded(name: str, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATES[name].replace("CANARY", str(tmp_path / "ran"))
    began = thread_time()
    try:
        assert len(render(tokenizer, [{"role": "user", "content": "Hello"}])) < 2_000_000
    except ChatError as error:
        assert "the chat template of" in str(error) and len(str(error)) < 1_000
    assert thread_time() - began < SECONDS + 2  # the clock is not read at every step
    assert not (tmp_path / "ran").exists()


def test_bounded_templates_say_what_transformers_says() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% set n = namespace(last='') %}{% for m in messages recursive %}{{ loop.index ~ '/' ~ loop.length }}"
        "{% if loop.first %}first{% elif not loop.last %}{{ loop.nextitem.role }}{% endif %}"
        "{% set n.last = n.last + m.content|trim %}{{ m.content.split(' ')|join('_') }}{{ '%s-%3d' % (m.role, 7 * 6) }}"
        "{{ '{:>4}'.format(m.role) }}{{ m|tojson(indent=2) }}{% else %}none{% endfor %}{{ n.last * 2 }}"
        "{% macro f(x) %}[{{ x|upper }}]{% endmacro %}{{ f('a' ~ 1) }}"
        "{% for k, v in {'a': 1}.items() %}{{ k }}{% endfor %}"
        "{% for i in range(3) if i != 1 %}{{ i }}{% if i %}{% break %}{% endif %}{% endfor %}{{ 2 ** 10 }}"
        "{{ x is defined }}"
        "{{ messages|map(attribute='role')|list }}{{ messages|selectattr('role', 'equalto', 'user')|list|length }}"
        "{% if add_generation_prompt %}{{ eos_token }}{% endif %}{{ tools }}{{ [1] + [2] }}{{ '\\n' }}text  "
    )
    chat = [
        {"role": "user", "content": " a b "},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    assert render(tokenizer, chat) == tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


def test_other_threads_render_as_before_meanwhile() -> None:
    from concurrent.futures import ThreadPoolExecutor

    tokenizer, chat = tiny_tokenizer(), [{"role": "user", "content": "a"}]
    with bounded(tokenizer.chat_template, 1), ThreadPoolExecutor(1) as pool:
        text = pool.submit(tokenizer.apply_chat_template, chat, tokenize=False).result()
    assert text == tokenizer.apply_chat_template(chat, tokenize=False)


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("model-00001-of-00002.safetensors", True),
        ("parts/model.safetensors", True),
        ("../x", False),
        ("a/../../x", False),
        ("/etc/passwd", False),
        ("..\\x", False),
        ("C:x", False),
        ("", False),
        (".", False),
        ("a\0b", False),
    ],
)
def test_plain_names(name: str, fits: bool) -> None:
    assert is_plain(name) is fits


def test_the_bench_counts(tmp_path: Path) -> None:
    """In separate processes, also from a hub cache; with trusted code, running that code is reported."""
    report = tmp_path / "report.json"
    command = ["-m", "tests.fuzz.models", "--only", "auto_map, unknown", "--entrances", "hub,gec"]
    done = subprocess.run(
        [sys.executable, *command, "--json", str(report)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())["outcomes"] == {"refused": 2}
