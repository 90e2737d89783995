"""Characters that end sentences, and those that may follow such an end, in the scripts of many languages."""

from __future__ import annotations

_SPACED = ".!?…؟۔։॥។៕"  # end a sentence before white space: Latin, Arabic, Armenian, Devanagari (verses), Khmer
UNSPACED_ENDS = "。！？｡।።፧။"
"""End a sentence whatever follows: Chinese and Japanese, Hindi and Bengali, Ethiopic, Burmese."""
SENTENCE_ENDS = _SPACED + UNSPACED_ENDS

QUESTION_MARKS = ("?", "？", "؟", "፧")

CLOSING_UNSPACED = "”’)）」』】》〉〕］｣"
"""Quotes and brackets that close right after one of `UNSPACED_ENDS`."""
CLOSING_QUOTES = "\"']»" + CLOSING_UNSPACED
"""All closing quotes and brackets."""
CLOSING = "*_" + CLOSING_QUOTES
"""Closing quotes, brackets and emphasis. Quotes and emphasis may also open: they close before white space only."""
