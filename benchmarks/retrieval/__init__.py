"""Retrievers, speculative retrieval, kNN-LM and LangChain."""
