"""Decoding: rows of a batch through propose, verify, commit. Token ids only: no tokenizer, no text."""
