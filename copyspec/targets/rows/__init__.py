"""The rows of a batch: the tokens of a pass over them, their keys and values, and what prompts share."""
