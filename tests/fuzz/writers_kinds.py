"""The writers of `tests.fuzz.writers`: what each writes next, and how its state is read."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from copyspec.engine.drafting.output_cache import OutputCache
from copyspec.pipelines import FileOptions, FunctionCorrector, GECPipeline, Outcome
from copyspec.pipelines.editing.journal import Journal
from copyspec.retrievers import Corpora, Datastore, Document, FaissOptions, Passage, load_corpus
from tests.fuzz.bases import IDENTITY, NAMESPACE, Tokenizer, encode

KINDS = ("bm25", "exact", "flat", "hnsw", "ivf", "tokens", "langchain", "journal", "cache", "file")
NAME = "index"
BATCH = 20  # number of items added by one write
WRONG, RIGHT = "He go home. ", "He goes home. "


def items(numbers: Sequence[int]) -> list[Passage]:
    """Make a passage for each number."""
    return [Passage(f"d{number % 7}", 10 * number, f"kettle {number} of heron {number % 5}") for number in numbers]


class Writer:
    """One kind of writer in a folder. Its state is the number of items written so far."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.path = kind, folder, folder / NAME
        self.corpora = Corpora(folder)

    def write(self, before: int) -> int:
        """Continue from state `before`; return the new state."""
        after = before + BATCH
        more = items(range(before, after))
        if self.kind == "bm25":
            self.corpora.add_bm25(NAME, more)
        elif self.kind == "tokens":
            documents = [Document(passage.document, passage.text) for passage in more]
            self.corpora.add_tokens(NAME, documents, Tokenizer(), duplicates=True)  # type: ignore[arg-type]
        elif self.kind == "langchain":
            self._write_documents(items(range(after)))
        elif self.kind == "journal":
            with Journal(self.path, IDENTITY, resume=before > 0) as journal:
                for passage in more:
                    journal.add(passage.text, Outcome(passage.text.upper()))
        elif self.kind == "cache":
            cache = OutputCache.load(self.path, NAMESPACE) if before else OutputCache(NAMESPACE)
            for passage in more:
                cache.add(passage.document, passage.text)
            cache.save(self.path)
        elif self.kind == "file":
            self._correct()
        else:
            options = None if self.kind == "exact" else FaissOptions(kind=self.kind, neighbours=4)  # type: ignore[arg-type]
            self.corpora.add_dense(NAME, more, encode, options=options)
        return after

    def state(self) -> int:
        """Read the current state. Raises AssertionError if it is neither the old nor the new state of a write."""
        if self.kind == "file":
            content = self.path.read_text()
            old, right = text(), text().replace(WRONG, RIGHT)
            assert content in (old, right), "the file is neither the old nor the new one"
            return int(content == right) * BATCH
        if self.kind == "journal":
            return self._in_journal()
        if not os.path.lexists(self.path if self.kind == "cache" else self.path / "manifest.json"):
            return 0
        if self.kind == "cache":
            mode = stat.S_IMODE(self.path.stat().st_mode)
            assert os.name == "nt" or mode == 0o600, f"others may read it: {mode:o}"
            cache = OutputCache.load(self.path, NAMESPACE)
            assert list(cache._entries) == [passage.text for passage in items(range(len(cache)))]
            return len(cache)
        if self.kind == "tokens":
            return self._in_datastore()
        if self.kind == "langchain":
            return self._in_documents()
        retriever, passages = load_corpus(self.path, encode=encode)
        assert passages == items(range(len(passages))), "other passages than were added"
        assert [hit.text for hit in retriever.search(passages[0].text, 1)], "nothing is found"
        return len(passages)

    def begin(self) -> None:
        """Prepare what must exist before the first write."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.kind == "file":
            self.path.write_text(text())

    def leftovers(self) -> list[str]:
        """List files that are not part of the current state."""
        return sorted(path.name for path in self.folder.rglob("*") if path.name.startswith(".") or "tmp" in path.name)

    def _correct(self) -> None:
        corrector = FunctionCorrector(
            lambda sentence: sentence.replace(WRONG.strip(), RIGHT.strip()), name="one mistake"
        )
        options = FileOptions(format="txt", in_place=True, resume=True)
        (report,) = GECPipeline(corrector).files(self.path, options)
        if report.error is not None:
            raise report.error

    def _write_documents(self, passages: Sequence[Passage]) -> None:
        from copyspec.retrievers.langchain import BM25Retriever

        numbers = [{"number": passage.start} for passage in passages]
        BM25Retriever.from_texts([passage.text for passage in passages], numbers).save(self.path)

    def _in_documents(self) -> int:
        from copyspec.retrievers.langchain import BM25Retriever

        documents = BM25Retriever.load(self.path).documents
        contents = [(document.page_content, document.metadata["number"]) for document in documents]
        assert contents == [(passage.text, passage.start) for passage in items(range(len(documents)))]
        return len(documents)

    def _in_datastore(self) -> int:
        with Datastore(self.path) as store:
            count = store.num_documents
            for number, passage in enumerate(items(range(count))):
                assert store.document(number) == Tokenizer()(passage.text)["input_ids"], f"document {number}"
        assert next(corpus for corpus in self.corpora.all() if corpus.name == NAME).documents == count
        return count

    def _in_journal(self) -> int:
        if not self.path.exists():
            return 0
        with Journal(self.path, IDENTITY, resume=True) as journal:
            count = len(journal)
            for passage in items(range(count)):
                outcome = journal.get(passage.text)
                assert outcome is not None and outcome.text == passage.text.upper(), passage.text
        return count


def text() -> str:
    """Return the text to correct in place."""
    return "".join(f"{WRONG}Number {number} waits.\n\n" for number in range(BATCH))
