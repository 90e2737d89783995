"""Answers from retrieved documents: quoting, iterative retrieval, kNN-LM."""
