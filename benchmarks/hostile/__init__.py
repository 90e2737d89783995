"""Forged, damaged and random input; killed writers; many threads."""
