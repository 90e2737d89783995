"""Calls on the way: from prompts to rows, through the scheduler, and back as texts."""
