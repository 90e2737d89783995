"""Drafts copied from the prompt, the references and the output so far."""
