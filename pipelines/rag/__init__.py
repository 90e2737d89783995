"""Retrieval-augmented generation: answers from documents, quoting, iterative retrieval, kNN-LM."""
