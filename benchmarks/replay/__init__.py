"""Drafts on recorded outputs of real models, without a model."""
