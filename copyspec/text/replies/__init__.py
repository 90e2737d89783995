"""What a chat model writes apart from its answer: thoughts and tool calls.

How a model writes them is read from its own chat template, by rendering a chat that has some (`learning.py`). Outputs
are then split into thought, answer and calls (`reader.py`), whole or as a stream.
"""
