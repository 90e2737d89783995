"""Speculative retrieval (RaLMSpec): a cache answers first, the retriever verifies."""
