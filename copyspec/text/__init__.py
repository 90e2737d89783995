"""Conversion between text and token ids: codec, chat templates, stop strings, blocks of a prompt."""
