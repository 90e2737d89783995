"""Pipelines: whole tasks, from texts to results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from copyspec.common.lazy import attach

if TYPE_CHECKING:
    from .applying.files import (
        apply_to_files as apply_to_files,
        FileApplied as FileApplied,
        finish_writing as finish_writing,
    )
    from .applying.files import NoFileError as NoFileError, write_files as write_files
    from .applying.pipeline import Applied as Applied, ApplyPipeline as ApplyPipeline
    from .applying.reading import EditError as EditError
    from .applying.tool import edit_tool as edit_tool
    from .documents import Edit as Edit, Format as Format, FormatError as FormatError
    from .documents import FormatOptionError as FormatOptionError, Part as Part, Refusal as Refusal
    from .documents import Segment as Segment
    from .editing.atomic_file import AtomicFile as AtomicFile
    from .editing.correctors import Corrector as Corrector, FunctionCorrector as FunctionCorrector
    from .editing.correctors import LateCorrector as LateCorrector, Outcome as Outcome
    from .editing.decisions import Decided as Decided, read_decisions as read_decisions
    from .editing.files import correct_files as correct_files, FileJob as FileJob, FileOptions as FileOptions
    from .editing.files import FileReport as FileReport, journal_path as journal_path, Listener as Listener
    from .editing.gec import Correction as Correction, correction_prompt as correction_prompt
    from .editing.gec import GECPipeline as GECPipeline
    from .editing.instructed import decoded_text as decoded_text, Edited as Edited
    from .editing.instructed import EditPipeline as EditPipeline
    from .editing.journal import fingerprint as fingerprint, JournalError as JournalError
    from .editing.model_corrector import ModelCorrector as ModelCorrector
    from .editing.paths import excluded_by as excluded_by, expand as expand, is_excluded as is_excluded
    from .editing.paths import Skipped as Skipped, suffixes_of as suffixes_of
    from .editing.runner import Done as Done, Runner as Runner, RunOptions as RunOptions, Work as Work
    from .editing.segmentation import splitter as splitter
    from .editing.selection import ChangedLines as ChangedLines, kind_of as kind_of, KINDS as KINDS, Kinds as Kinds
    from .editing.selection import Marks as Marks, Selection as Selection
    from .editing.summary import Summary as Summary
    from .editing.writable import unwritable as unwritable
    from .edits.diff import apply as apply, shift as shift
    from .edits.earlier import EarlierCorrections as EarlierCorrections
    from .edits.redline import Redline as Redline, redline_html as redline_html
    from .edits.render import base_of_diff as base_of_diff, colored_diff as colored_diff, EditRows as EditRows
    from .edits.render import inline_diff as inline_diff, path_in_diff as path_in_diff, unified_diff as unified_diff
    from .extracting.readers import DOCUMENT_READERS as DOCUMENT_READERS
    from .formats import DocxFormat as DocxFormat, format_of as format_of
    from .formats import FORMATS as FORMATS, OpenDocumentFormat as OpenDocumentFormat
    from .formats.m2 import annotated as annotated
    from .options import (
        ApplyOptions as ApplyOptions,
        EditOptions as EditOptions,
        FormatOptions as FormatOptions,
        GuardOptions as GuardOptions,
    )
    from .options import ModelOptions as ModelOptions
    from .models import answers_plain_text as answers_plain_text
    from .rag.answering import AnswerChunk as AnswerChunk, DocumentAnswer as DocumentAnswer
    from .rag.answering import DocumentAnswers as DocumentAnswers
    from .rag.citing import Citation as Citation, citations as citations
    from .rag.iterative import IterativeRAG as IterativeRAG, RAGAnswer as RAGAnswer, RAGStream as RAGStream
    from .rag.iterative import ShownDocument as ShownDocument
    from .rag.knn_lm import KNNDatastore as KNNDatastore
    from .rag.knn_lm import KNNAnswer as KNNAnswer, KNNLM as KNNLM, KNNOptions as KNNOptions
    from .rag.options import Speculation as Speculation
    from .rag.quoting import answer as answer, best_passage as best_passage, content_words as content_words
    from .rag.quoting import Quote as Quote, quote_prompt as quote_prompt
else:
    __getattr__, __dir__, __all__ = attach(__name__)
