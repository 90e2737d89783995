"""The engine: text and references in, requests to decoding, text and provenance out."""
