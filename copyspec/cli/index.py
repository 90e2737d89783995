"""`copyspec index`: builds corpora from files and folders, to search and to copy from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from copyspec.cli.common import FAILED, UsageError, as_json, quiet_libraries
from copyspec.cli.options import option_names, with_options
from copyspec.cli.printing import console, echo
from copyspec.cli.remote_options import EMBEDDER_HELP, KEY_FILE_HELP, embedder_of
from copyspec.common.checks import option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from copyspec.client.embedding import ServerEmbedder
    from copyspec.retrievers import Corpora, Corpus, Document, HuggingFaceEmbedder, Passage

FOLDER_VARIABLE = "COPYSPEC_CORPORA"
DEFAULT_FOLDER = Path("~/.copyspec/corpora")
KINDS, SEARCHES = ("bm25", "dense", "hybrid", "tokens"), ("exact", "flat", "hnsw", "ivf")

_BATCH = 256  # texts encoded per step of the progress bar
_MAX_LISTED = 10  # names in a message

_T = TypeVar("_T")

index = typer.Typer(
    help="Build, list and remove named corpora, for retrieval or for drafting.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Folder = Annotated[Path, typer.Option("--dir", "-d", envvar=FOLDER_VARIABLE, help="Folder that holds the corpora.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """How a corpus is built. Raises UsageError for options that this kind of corpus needs or would ignore."""

    kind: str = option("bm25", "bm25, dense, hybrid (both, fused), or tokens (a datastore).", "--kind", "-k")
    field: str = option("text", "Field of .jsonl lines that holds the text.")
    max_chars: int = option(1000, "Longest passage, in characters (all kinds but tokens).")
    language: str | None = option(
        None, 'Language for stemming (bm25, hybrid); "words": none. Default: english.', "--language", "-l"
    )
    encoder: str | None = option(None, "Hub id or folder of the encoder (dense, hybrid).")
    prefix: str = option("", 'Prefix of all texts for the encoder, like "query: " (dense, hybrid).')
    embedder_server: str | None = option(None, EMBEDDER_HELP, rich_help_panel="Server")
    api_key_file: Path | None = option(None, KEY_FILE_HELP, rich_help_panel="Server")
    search: str | None = option(None, "exact (default), or with FAISS: flat, hnsw, ivf (dense, hybrid).")
    model: str | None = option(
        None, "Model whose tokenizer is used (tokens). Default: as in generate.", "--model", "-m"
    )
    duplicates: bool = option(False, "Also add passages that the corpus already has.")

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"--kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.search not in (None, *SEARCHES):
            raise UsageError(f"--search must be one of {', '.join(SEARCHES)}, got {self.search!r}")
        ignored = ["encoder", "prefix", "search", "embedder_server"]
        if self.kind in ("dense", "hybrid"):
            if self.encoder is None:
                raise UsageError(
                    f"--kind {self.kind} needs --encoder, the hub id or folder of the model that makes the vectors"
                )
            ignored = []
        ignored += ["model"] * (self.kind != "tokens") + ["language"] * (self.kind not in ("bm25", "hybrid"))
        if given := next((name for name in ignored if getattr(self, name)), None):
            name = option_names(CorpusOptions)[given]
            raise UsageError(f"{name} has no effect with --kind {self.kind}: leave it out, or name another kind")


@index.command()
@with_options
def add(
    name: Annotated[str, typer.Argument(help="Name of the corpus; an existing one is extended.")],
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Files and folders: text, Markdown, .rst, .jsonl, .ipynb, PDF, Word, PowerPoint, EPUB, HTML."
        ),
    ],
    how: CorpusOptions,
    folder: _Folder = DEFAULT_FOLDER,
    json_output: _Json = False,
) -> None:
    """Build a corpus from files and folders, or add to it.

    Files that have not changed since they were added are not read again; of those that have, the new passages take the
    place of the old ones. Passages of files that are gone from a given folder are removed. Passages that are there
    already are skipped. Files that cannot be read are skipped and named.
    """
    from copyspec.retrievers import PLAIN, Corpora, languages

    if how.language not in (None, PLAIN, *languages()):
        raise UsageError(f"--language must be {PLAIN} or one of {', '.join(languages())}, got {how.language!r}")
    if how.kind != "bm25" and how.embedder_server is None:
        quiet_libraries()
    corpora = Corpora(folder.expanduser())
    known = {} if how.kind == "tokens" else corpora.stamps(name)  # a datastore keeps all that was added
    reader = _FileReader(f"{how.field}:{how.max_chars}", known, how.duplicates)
    documents = reader.documents(paths, how.field)
    if how.kind == "tokens":
        corpus = _add_tokens(corpora, name, documents, how)
    elif how.kind == "bm25":
        passages = reader.passages(documents, how.max_chars)
        corpus = corpora.add_bm25(
            name, passages, language=how.language, duplicates=how.duplicates, stamps=reader.stamps
        )
    else:
        corpus = _add_vectors(corpora, name, documents, how, reader)
    if corpus.skipped:
        unit = "documents" if how.kind == "tokens" else "passages"
        note = f"skipped {corpus.skipped:,} {unit} already in {name!r}; --duplicates adds them anyway"
        echo(note, err=True)
    reader.report(corpus)
    echo(as_json({**asdict(corpus), **reader.counts()}) if json_output else _line(corpus))


@index.command(name="list")
def list_(folder: _Folder = DEFAULT_FOLDER, json_output: _Json = False) -> int:
    """List the corpora in the folder.

    Damaged ones are named on stderr, and the exit code is 3.
    """
    from copyspec.retrievers import Corpora

    damaged: list[str] = []

    def leave_out(name: str, error: Exception) -> None:
        damaged.append(name)
        echo(f"left out {name!r}: {error}", err=True)

    corpora = Corpora(folder.expanduser()).all(leave_out)
    if json_output:
        echo(as_json([asdict(corpus) for corpus in corpora]))
    else:
        for corpus in corpora:
            echo(_line(corpus))
    return FAILED if damaged else 0


@index.command()
def remove(
    name: Annotated[str, typer.Argument(help="The corpus.")],
    folder: _Folder = DEFAULT_FOLDER,
) -> None:
    """Delete a corpus.

    Other files in its folder stay, and are named.
    """
    from copyspec.retrievers import Corpora

    left = Corpora(folder.expanduser()).remove(name)
    echo(f"removed {name}")
    if left:
        echo(f"left {_listed(left)} in {str(folder / name)!r}, which the index did not write", err=True)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(map(repr, names[:_MAX_LISTED])) + more


def corpus_folder(option: str, value: str, folder: Path) -> Path:
    """The folder of a corpus, given as a folder or as a name in `folder`."""
    from copyspec.retrievers import Corpora

    corpora = Corpora(folder.expanduser())
    is_name = value in corpora.names()  # the folder of the texts often has the name of their corpus
    if Path(value).is_dir() and (Corpora.is_index(Path(value)) or not is_name):
        return Path(value)
    if is_name:
        return corpora.path(value)
    names = ", ".join(map(repr, corpora.names())) or "none"
    raise UsageError(
        f"{option} {value!r} is neither a folder nor a corpus in {str(corpora.folder)!r}, which holds {names}"
    )


class _FileReader:
    """Reads files, keeping track of new, changed, deleted and unreadable ones."""

    def __init__(self, settings: str, known: dict[str, str], adds_again: bool) -> None:
        """`settings`: those that passages depend on besides the file. `known`: the stamp of each file in the corpus,
        which tells whether it has changed: its size and times (`retrievers.passages.stamp_of`), and these settings.
        `adds_again`: read unchanged files, too, and leave the passages that the corpus has of them."""
        self._settings, self._known, self._adds_again = settings, known, adds_again
        self.stamps: dict[str, str] = {}
        """The stamps of the files that were read; "" for those that are gone."""
        self._left_out = 0
        self._unchanged = 0

    def documents(self, paths: Sequence[Path], field: str) -> Iterator[Document]:
        """The texts of all files that need to be read."""
        if missing := [path for path in paths if not path.exists()]:
            raise UsageError(f"there is no file or folder {str(missing[0])!r}")
        from copyspec.pipelines import DOCUMENT_READERS
        from copyspec.retrievers import UNSTAMPED, is_gone, read_documents

        ending, seen, others = f":{self._settings}", set[str](), list[Path]()
        # A file that was read in another way counts as changed.
        known = dict.fromkeys(self._known, "")
        if not self._adds_again:
            known |= {file: stamp.removesuffix(ending) for file, stamp in self._known.items() if stamp.endswith(ending)}

        def read(file: str, stamp: str) -> None:
            self.stamps[file] = UNSTAMPED if self._adds_again else stamp + ending

        yield from read_documents(
            [os.path.abspath(path) for path in paths],  # relative ones of two folders may be the same
            field=field,
            readers=DOCUMENT_READERS,
            on_error=self._leave_out,
            known=known,
            on_unchanged=seen.add,
            on_read=read,
            on_other=others.append,
        )
        if others:
            endings = sorted({file.suffix.lower() or file.name for file in others})[:_MAX_LISTED]
            count = "1 file of another kind" if len(others) == 1 else f"{len(others):,} files of other kinds"
            echo(f"skipped: {count} ({', '.join(map(repr, endings))})", err=True)
        self._unchanged = len(seen)
        if self._left_out and not self.stamps and not seen:
            raise UsageError(f"none of the {self._left_out} files can be read")
        folders = tuple(os.path.join(os.path.abspath(path), "") for path in paths if path.is_dir())
        gone = (file for file in self._known if file.startswith(folders) and is_gone(file))
        self.stamps.update(dict.fromkeys(gone, ""))

    def passages(self, documents: Iterable[Document], max_chars: int) -> list[Passage]:
        """The passages of all documents."""
        from copyspec.retrievers import split_passages

        with _progress("reading", None) as step:
            return [
                passage
                for document in _each(documents, step)
                for passage in split_passages(document, max_chars=max_chars)
            ]

    def counts(self) -> dict[str, int]:
        """The counts for JSON."""
        return {"unchanged": self._unchanged, "left_out": self._left_out}

    def report(self, corpus: Corpus) -> None:
        """Report unchanged files and replaced passages on stderr."""
        if self._unchanged:
            have = "file has" if self._unchanged == 1 else "files have"
            echo(f"{self._unchanged:,} {have} not changed since the last time", err=True)
        if corpus.replaced:
            echo(f"passages of changed or deleted files that are gone: {corpus.replaced:,}", err=True)

    def _leave_out(self, file: Path, error: Exception) -> None:
        self._left_out += 1
        message = str(error)
        echo(f"skipped: {message}" if str(file) in message else f"skipped: {str(file)!r}: {message}", err=True)


def _add_vectors(
    corpora: Corpora, name: str, documents: Iterable[Document], how: CorpusOptions, reader: _FileReader
) -> Corpus:
    from copyspec.retrievers import FaissOptions, HuggingFaceEmbedder

    search: Any = how.search if how.search in (None, "exact") else FaissOptions(kind=how.search)  # type: ignore[arg-type]
    with ExitStack() as stack:
        embed: HuggingFaceEmbedder | ServerEmbedder
        if how.embedder_server is not None:
            embed = embedder_of(how.embedder_server, how.encoder, how.api_key_file, how.prefix)
            stack.callback(embed.close)
        else:
            embed = HuggingFaceEmbedder(str(how.encoder), prefix=how.prefix)
        passages = reader.passages(documents, how.max_chars)
        encode = _Encoding(embed, stack.enter_context(_progress("encoding", len(passages))))
        added: dict[str, Any] = {"options": search, "duplicates": how.duplicates, "stamps": reader.stamps}
        if how.kind == "dense":
            return corpora.add_dense(name, passages, encode, **added)
        return corpora.add_hybrid(name, passages, encode, language=how.language, **added)


class _Encoding:
    """An encoder that reports its progress."""

    def __init__(self, embed: HuggingFaceEmbedder | ServerEmbedder, step: Callable[[int], None]) -> None:
        self.name, self.prefix = embed.name, embed.prefix
        self._embed, self._step = embed, step
        self.encode_query = getattr(embed, "encode_query", embed)

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import numpy as np

        parts = [np.empty((0, self._embed.dimension), np.float32)]
        for start in range(0, len(texts), _BATCH):
            parts.append(self._embed(texts[start : start + _BATCH]))
            self._step(len(parts[-1]))
        return np.concatenate(parts)


def _add_tokens(corpora: Corpora, name: str, documents: Iterable[Document], how: CorpusOptions) -> Corpus:
    from copyspec.models.loading import choose_default, resolve_name
    from copyspec.models.pretrained import Pretrained

    chosen = resolve_name(how.model or choose_default())
    tokenizer = Pretrained(chosen).tokenizer(f"no tokenizer for --model {chosen!r}")
    with _progress("tokenising", None) as step:
        return corpora.add_tokens(name, _each(documents, step), tokenizer, duplicates=how.duplicates)


def _each(items: Iterable[_T], step: Callable[[int], None]) -> Iterator[_T]:
    for item in items:
        yield item
        step(1)


@contextmanager
def _progress(task: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr if it is a terminal; yields the function that advances it."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda count: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        number = bar.add_task(task, total=total)
        yield lambda count: bar.advance(number, count)


def _line(corpus: Corpus) -> str:
    unit = "tokens" if corpus.kind == "tokens" else "passages"
    return (
        f"{corpus.name:<20} {corpus.kind:<7} {corpus.documents:>9,} documents {corpus.size:>12,} {unit:<9}"
        f"{corpus.bytes / 1e6:>10,.1f} MB"
    )
