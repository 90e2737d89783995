"""Drafters that give token probabilities: n-grams, datastores, language models."""
