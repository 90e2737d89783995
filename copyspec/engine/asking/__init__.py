"""What a call asks for: its prompts, texts and options."""
