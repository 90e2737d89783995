"""Pipelines: whole tasks, from texts to results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from copyspec.lazy import attach

if TYPE_CHECKING:
    from .documents import Edit, Format, FormatError, FormatOptionError, Part, Refusal, Segment
    from .editing.atomic_file import AtomicFile
    from .editing.correctors import (
        Corrector,
        FunctionCorrector,
        LateCorrector,
        ModelOptions,
        Outcome,
    )
    from .editing.decisions import Decided, read_decisions
    from .editing.files import FileJob, FileOptions, FileReport, Listener, correct_files, journal_path
    from .editing.gec import Correction, GECPipeline, correction_prompt
    from .editing.instructed import Edited, EditOptions, EditPipeline
    from .editing.instructed import decoded as decoded_text
    from .editing.journal import JournalError, fingerprint
    from .editing.model_corrector import ModelCorrector
    from .editing.paths import Skipped, excluded_by, expand, is_excluded, suffixes_of
    from .editing.runner import Done, Runner, RunOptions, Work
    from .editing.segmentation import splitter
    from .editing.selection import KINDS, ChangedLines, Kinds, Marks, Selection, kind_of
    from .editing.summary import Summary
    from .editing.writable import unwritable
    from .edits.diff import apply, shift
    from .edits.earlier import EarlierCorrections
    from .edits.redline import Redline
    from .edits.redline import html as redline_html
    from .edits.render import EditRows, base_of_diff, colored_diff, inline_diff, path_in_diff, unified_diff
    from .extracting.readers import DOCUMENT_READERS
    from .formats import NAMES as FORMATS
    from .formats import DocxFormat, FormatOptions, OpenDocumentFormat, format_of
    from .formats.m2 import annotated
    from .guards.guards import GuardOptions
    from .models import answers_plain_text
    from .rag.answering import AnswerChunk, DocumentAnswer, DocumentAnswers
    from .rag.citing import Citation, citations
    from .rag.iterative import IterativeRAG, RAGAnswer, RAGStream, ShownDocument
    from .rag.knn_datastore import KNNDatastore
    from .rag.knn_lm import KNNLM, KNNAnswer, KNNOptions
    from .rag.options import Speculation
    from .rag.quoting import Quote, answer, best_passage, content_words, quote_prompt

__all__ = [
    "DOCUMENT_READERS",
    "FORMATS",
    "KINDS",
    "KNNLM",
    "AnswerChunk",
    "AtomicFile",
    "ChangedLines",
    "Citation",
    "Correction",
    "Corrector",
    "Decided",
    "DocumentAnswer",
    "DocumentAnswers",
    "DocxFormat",
    "Done",
    "EarlierCorrections",
    "Edit",
    "EditOptions",
    "EditPipeline",
    "EditRows",
    "Edited",
    "FileJob",
    "FileOptions",
    "FileReport",
    "Format",
    "FormatError",
    "FormatOptionError",
    "FormatOptions",
    "FunctionCorrector",
    "GECPipeline",
    "GuardOptions",
    "IterativeRAG",
    "JournalError",
    "KNNAnswer",
    "KNNDatastore",
    "KNNOptions",
    "Kinds",
    "LateCorrector",
    "Listener",
    "Marks",
    "ModelCorrector",
    "ModelOptions",
    "OpenDocumentFormat",
    "Outcome",
    "Part",
    "Quote",
    "RAGAnswer",
    "RAGStream",
    "Redline",
    "Refusal",
    "RunOptions",
    "Runner",
    "Segment",
    "Selection",
    "ShownDocument",
    "Skipped",
    "Speculation",
    "Summary",
    "Work",
    "annotated",
    "answer",
    "answers_plain_text",
    "apply",
    "base_of_diff",
    "best_passage",
    "citations",
    "colored_diff",
    "content_words",
    "correct_files",
    "correction_prompt",
    "decoded_text",
    "excluded_by",
    "expand",
    "fingerprint",
    "format_of",
    "inline_diff",
    "is_excluded",
    "journal_path",
    "kind_of",
    "path_in_diff",
    "quote_prompt",
    "read_decisions",
    "redline_html",
    "shift",
    "splitter",
    "suffixes_of",
    "unified_diff",
    "unwritable",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        ".extracting.readers": "DOCUMENT_READERS",
        ".rag.answering": "AnswerChunk DocumentAnswer DocumentAnswers",
        ".rag.citing": "Citation citations",
        ".editing.correctors": "Corrector FunctionCorrector LateCorrector ModelOptions Outcome",
        ".editing.model_corrector": "ModelCorrector",
        ".documents": "Edit Format FormatError FormatOptionError Part Refusal Segment",
        ".edits.earlier": "EarlierCorrections",
        ".editing.instructed": "Edited EditOptions EditPipeline decoded_text=decoded",
        ".edits.diff": "apply shift",
        ".editing.files": "FileJob FileOptions FileReport Listener correct_files journal_path",
        ".formats": "DocxFormat FormatOptions OpenDocumentFormat format_of FORMATS=NAMES",
        ".formats.m2": "annotated",
        ".editing.gec": "Correction GECPipeline correction_prompt",
        ".guards.guards": "GuardOptions",
        ".rag.iterative": "IterativeRAG RAGAnswer RAGStream ShownDocument",
        ".editing.journal": "JournalError fingerprint",
        ".editing.decisions": "Decided read_decisions",
        ".rag.knn_datastore": "KNNDatastore",
        ".rag.knn_lm": "KNNLM KNNAnswer KNNOptions",
        ".models": "answers_plain_text",
        ".editing.atomic_file": "AtomicFile",
        ".editing.paths": "Skipped excluded_by expand is_excluded suffixes_of",
        ".rag.quoting": "Quote answer best_passage content_words quote_prompt",
        ".rag.options": "Speculation",
        ".edits.redline": "Redline redline_html=html",
        ".edits.render": "EditRows base_of_diff colored_diff inline_diff path_in_diff unified_diff",
        ".editing.selection": "KINDS ChangedLines Kinds Marks Selection kind_of",
        ".editing.runner": "Done Runner RunOptions Work",
        ".editing.segmentation": "splitter",
        ".editing.summary": "Summary",
        ".editing.writable": "unwritable",
    },
)
