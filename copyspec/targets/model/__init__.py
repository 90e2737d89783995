"""What is known of a model: its limits, the arguments of its forward, its kinds of attention; and its lock."""
