"""Datastores of token ids: a suffix array in segments."""
