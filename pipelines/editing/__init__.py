"""Correcting and editing texts and files."""
