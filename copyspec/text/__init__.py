"""Conversion between text and token ids: codec, chat templates, prompts, references, stop strings, blocks of a
prompt."""
