"""The self-test: checks on a small sibling of a model that tree verification equals plain decoding."""
