"""Benchmarks of retrievers, speculative retrieval, kNN-LM and LangChain."""
