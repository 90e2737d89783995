"""What is changed inside transformers' models: the only place that knows their private names."""
