"""A real model on prompts of real tasks."""
