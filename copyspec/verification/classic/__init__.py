"""The verification rules of the literature."""
