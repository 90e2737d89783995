"""What is not written: guards between a model's output and a file."""
