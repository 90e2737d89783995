"""Verification rules from the literature on speculative decoding."""
