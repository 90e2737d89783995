"""Compares decoding methods on a real model with prompts of real tasks."""
