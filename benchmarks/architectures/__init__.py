"""Compares copyspec with `generate` on every architecture of transformers."""
