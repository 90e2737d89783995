"""The bundled default model: config.json, model.safetensors and the tokenizer (model card: docs/default_model.md)."""
