"""Measures browser cost and checks accessibility of the HTML views."""
