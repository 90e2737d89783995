"""Trains the bundled models and draft models. Nothing in the package imports this folder."""
