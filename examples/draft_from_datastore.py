"""Indexes the tokens of a folder of texts and drafts from them (REST): the output is the same, in fewer passes.

python -m examples.draft_from_datastore
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import copyspec
from copyspec.retrievers import Corpora, Datastore, read_documents

QUESTION = "Quote the sentence that answers: When does the harbour office open?"


def main() -> None:
    engine = copyspec.load("default")
    texts = Path(__file__).parent / "corpus"
    prompt = f"{QUESTION}\n{(texts / 'harbour.md').read_text(encoding='utf-8')}"
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpora(folder).add_tokens("town", read_documents([texts]), engine.tokenizer)
        store = Datastore(Path(folder) / corpus.name)
        plain = engine.generate(prompt, drafter="none", max_new_tokens=48)
        # Only the datastore drafts here; by default, copies from the prompt would draft this quote as well.
        drafted = engine.generate(prompt, drafter="model", datastore=store, max_new_tokens=48)
        assert drafted.token_ids == plain.token_ids
        print(f"{drafted.text.strip()}\nplain: {plain.stats.num_passes} passes of the model")
        accepted = drafted.stats.num_accepted_tokens_per_source.get("datastore", 0)
        print(f"with the datastore: {drafted.stats.num_passes}, {accepted} tokens of {corpus.size:,} in it accepted")


if __name__ == "__main__":
    main()
