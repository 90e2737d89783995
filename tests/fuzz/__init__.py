"""Robustness tests: forged, damaged and random input; killed writers; many threads."""
