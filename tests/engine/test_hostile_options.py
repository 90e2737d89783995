"""The harness of wrong keyword values: it finds faults, and no keyword has one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import copyspec
from tests.fuzz import options

FEW = ("nan", "-1", "10**400", "True", "np.array", "tensor nan", "surrogate", "bytes", "[]", "[[]]", "[None]", "odd")


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    yield
    copyspec.configure()


def test_faults_are_found() -> None:
    def of(error: Exception) -> str | None:
        def call() -> None:
            raise error

        return options.fault(call, "top_k", -1)

    assert of(ValueError("top_k must be at least 0, got -1")) is None
    assert of(ValueError("got -1")) is None
    assert of(ValueError("it is wrong")) == "ValueError that names neither: it is wrong"
    assert of(OverflowError("int too large")) == "OverflowError: int too large"
    assert "2,000 characters" in str(of(ValueError("top_k" * 400)))


@pytest.mark.parametrize("called", ["generate", "compare", "load", "configure"])
def test_no_wrong_value_is_a_fault(called: str) -> None:
    engine = copyspec.load("default", dtype="float32")
    call, names = options.calls(engine)[called]
    values = {name: options.values()[name] for name in FEW}
    wanted = names if called != "compare" else ("references", "prompt", "batch_size", "chat", "timeout")
    for name in wanted:
        for shown, value in values.items():
            wrong = options.fault(lambda name=name, value=value: call(**{name: value}), name, value)  # type: ignore[misc]
            assert wrong is None, f"{called}({name}={shown}): {wrong}"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("tokenizer", ["x"], r"tokenizer must be a hub id, a folder or a transformers tokenizer; got list: \['x'\]"),
        ("tokenizer", "", "tokenizer must be a hub id, a folder"),
        ("revision", 3, "revision must be the name of a branch, a tag or a commit; got int: 3"),
        ("device", True, "device must be 'cpu', 'cuda', 'cuda:1' or the like, or 'auto'; got bool: True"),
        ("device", 2**63, "device must be 'cpu'"),
        ("adapter", "x" * 5000, "adapter 'x+.* has 5,000 characters, and no path or hub id has more than 4,096"),
        ("model", "x" * 5000, "model 'x+.* has 5,000 characters"),
    ],
)
def test_wrong_options_of_loading_are_named(name: str, value: object, said: str) -> None:
    with pytest.raises((TypeError, ValueError, copyspec.LoadError), match=said):
        copyspec.load(**{"model": "default", name: value})  # type: ignore[call-overload]


def test_a_tokenizer_may_be_a_path() -> None:
    from copyspec.models.loading import BUNDLED

    assert copyspec.load("default", tokenizer=BUNDLED).tokenizer is not None
