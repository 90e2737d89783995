"""Drafters: cursors into sources, grown into one tree."""
