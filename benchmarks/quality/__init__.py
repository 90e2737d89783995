"""Measures the quality of correctors and other answers, and tests the guards."""
