"""Edits: found between two texts, shown, remembered."""
