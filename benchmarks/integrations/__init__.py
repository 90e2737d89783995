"""Compares copyspec inside other engines with their own drafters."""
