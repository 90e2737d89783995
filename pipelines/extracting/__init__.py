"""Extracts the text of PDF, Word, PowerPoint, EPUB and HTML documents, with headings and pages, for retrieval."""
