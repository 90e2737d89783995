"""Pipelines: whole tasks, from texts to results."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from copyspec.pipelines.documents import Edit, Format, FormatError, Part, Refusal, Segment
    from copyspec.pipelines.editing.correctors import (
        Corrector,
        FunctionCorrector,
        ModelCorrector,
        ModelOptions,
        Outcome,
    )
    from copyspec.pipelines.editing.files import FileJob, FileOptions, FileReport, Listener, correct_files
    from copyspec.pipelines.editing.gec import Correction, GECPipeline, correction_prompt
    from copyspec.pipelines.editing.instructed import Edited, EditOptions, EditPipeline
    from copyspec.pipelines.editing.instructed import decoded as decoded_text
    from copyspec.pipelines.editing.journal import JournalError
    from copyspec.pipelines.editing.output import AtomicFile
    from copyspec.pipelines.editing.paths import Skipped, expand, suffixes_of
    from copyspec.pipelines.editing.runner import Done, Runner, RunOptions, Work
    from copyspec.pipelines.editing.segmentation import splitter
    from copyspec.pipelines.editing.summary import Summary
    from copyspec.pipelines.edits.diff import apply, shift
    from copyspec.pipelines.edits.earlier import EarlierCorrections
    from copyspec.pipelines.edits.redline import Redline
    from copyspec.pipelines.edits.redline import html as redline_html
    from copyspec.pipelines.edits.render import EditRows, unified_diff
    from copyspec.pipelines.formats import NAMES as FORMATS
    from copyspec.pipelines.formats import DocxFormat, FormatOptions, format_of
    from copyspec.pipelines.formats.m2 import annotated
    from copyspec.pipelines.guards.guards import GuardOptions
    from copyspec.pipelines.models import answers_plain_text
    from copyspec.pipelines.rag.citing import Citation, citations
    from copyspec.pipelines.rag.iterative import IterativeRAG, RAGAnswer, RAGStream, ShownDocument
    from copyspec.pipelines.rag.knn_datastore import KNNDatastore
    from copyspec.pipelines.rag.knn_lm import KNNLM, KNNAnswer, KNNOptions
    from copyspec.pipelines.rag.options import Speculation
    from copyspec.pipelines.rag.quoting import Quote, answer, best_passage, content_words, quote_prompt

__all__ = [
    "FORMATS",
    "KNNLM",
    "AtomicFile",
    "Citation",
    "Correction",
    "Corrector",
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
    "FormatOptions",
    "FunctionCorrector",
    "GECPipeline",
    "GuardOptions",
    "IterativeRAG",
    "JournalError",
    "KNNAnswer",
    "KNNDatastore",
    "KNNOptions",
    "Listener",
    "ModelCorrector",
    "ModelOptions",
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
    "ShownDocument",
    "Skipped",
    "Speculation",
    "Summary",
    "Work",
    "annotated",
    "answer",
    "answers_plain_text",
    "apply",
    "best_passage",
    "citations",
    "content_words",
    "correct_files",
    "correction_prompt",
    "decoded_text",
    "expand",
    "format_of",
    "quote_prompt",
    "redline_html",
    "shift",
    "splitter",
    "suffixes_of",
    "unified_diff",
]

# Imported where first used, as in copyspec itself: what needs no model loads none of torch. [module: its names]
_EXPORTS = {
    "rag.citing": ("Citation", "citations"),
    "editing.correctors": ("Corrector", "FunctionCorrector", "ModelCorrector", "ModelOptions", "Outcome"),
    "documents": ("Edit", "Format", "FormatError", "Part", "Refusal", "Segment"),
    "edits.earlier": ("EarlierCorrections",),
    "editing.instructed": ("Edited", "EditOptions", "EditPipeline"),
    "edits.diff": ("apply", "shift"),
    "editing.files": ("FileJob", "FileOptions", "FileReport", "Listener", "correct_files"),
    "formats": ("DocxFormat", "FormatOptions", "format_of"),
    "formats.m2": ("annotated",),
    "editing.gec": ("Correction", "GECPipeline", "correction_prompt"),
    "guards.guards": ("GuardOptions",),
    "rag.iterative": ("IterativeRAG", "RAGAnswer", "RAGStream", "ShownDocument"),
    "editing.journal": ("JournalError",),
    "rag.knn_datastore": ("KNNDatastore",),
    "rag.knn_lm": ("KNNLM", "KNNAnswer", "KNNOptions"),
    "models": ("answers_plain_text",),
    "editing.output": ("AtomicFile",),
    "editing.paths": ("Skipped", "expand", "suffixes_of"),
    "rag.quoting": ("Quote", "answer", "best_passage", "content_words", "quote_prompt"),
    "rag.options": ("Speculation",),
    "edits.redline": ("Redline",),
    "edits.render": ("EditRows", "unified_diff"),
    "editing.runner": ("Done", "Runner", "RunOptions", "Work"),
    "editing.segmentation": ("splitter",),
    "editing.summary": ("Summary",),
}
_RENAMED = {
    "decoded_text": ("editing.instructed", "decoded"),
    "FORMATS": ("formats", "NAMES"),
    "redline_html": ("edits.redline", "html"),
}
_PLACES = {name: (module, name) for module, names in _EXPORTS.items() for name in names} | _RENAMED


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, its_name = _PLACES[name]
    value: object = getattr(importlib.import_module(f".{module}", __name__), its_name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
