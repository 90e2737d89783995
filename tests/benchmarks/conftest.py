"""Texts to train on, for benchmarks of trained models."""

from tests.training.conftest import paragraphs as paragraphs
from tests.training.conftest import prose as prose
