"""Decoding: drafts, verifies and commits tokens for the rows of a batch. It handles token ids, never text."""
