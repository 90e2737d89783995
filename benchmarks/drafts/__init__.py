"""Measures the cost of drafting, and the gains of drafters other than copying."""
