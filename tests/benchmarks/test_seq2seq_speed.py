"""A trained encoder-decoder, exported, corrects as its benchmarks say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from benchmarks.quality.model import QualityModel
from benchmarks.speed.seq2seq import METHODS, Bench, measure, show
from copyspec.engine.engine import Engine
from training.examples import CORRECT
from training.export import export
from training.families import FAMILIES
from training.plans import PRESETS
from training.seq2seq import START, Seq2SeqShape
from training.train import train

_SHAPE = Seq2SeqShape(
    vocab=96, width=24, encoder_layers=3, decoder_layers=2, heads=2, head=8, inner=20, buckets=8, distance=16,
    context=48,
)  # fmt: skip


def test_a_run_trains_and_its_export_corrects(prose: Path, paragraphs: list[str], tmp_path: Path) -> None:
    shape = replace(_SHAPE, vocab=320, context=256)
    tiny = replace(PRESETS["seq2seq"], shape=shape, batch=512, limit=256, steps=4, tokenizer=None)
    train(prose, tmp_path / "run", tiny, 0.0)
    export(tmp_path / "run", tmp_path / "model")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert model.generation_config.decoder_start_token_id == tokenizer.pad_token_id == START
    assert model.config.task_specific_params["correction"]["prefix"] == CORRECT
    text = "naïve 漢字 😀  two\n\n lines"
    ids = tokenizer(text, return_tensors="pt")
    assert tokenizer.decode(ids["input_ids"][0], skip_special_tokens=True) == text
    expected = model.generate(**ids, do_sample=False, max_new_tokens=12)[0, 1:].tolist()
    result = Engine(model, tokenizer).generate(text, edit_source=text, max_new_tokens=12)
    assert list(result.token_ids) == expected
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    read = FAMILIES["t5"].shape_of(config)
    assert replace(read, context=shape.context) == replace(shape, vocab=read.vocab)
    report = measure(Bench(tmp_path / "model", torch.float32, instruction=""), ["The fox sleeps.", "It eats mice."])
    assert list(report["methods"]) == list(METHODS)
    for row in report["methods"].values():
        assert row["equal_to_generate"] == row["batch_8_equal_to_serial"] == report["texts"] == 2
    assert "calls_per_text" in show(report)
    quality = QualityModel(tmp_path / "model", torch.float32, instruction="")
    assert quality.corrections(["The fox sleeps."])[0] == quality.corrections(["The fox sleeps.", paragraphs[0]])[0]
    further = replace(tiny, steps=1, shape=read, weights=tmp_path / "model")
    train(prose, tmp_path / "further", further, 0.0)
    before = (tmp_path / "model" / "tokenizer.json").read_text()
    assert json.loads((tmp_path / "further" / "tokenizer.json").read_text()) == json.loads(before)
