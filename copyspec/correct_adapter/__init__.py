"""The corrector: an adapter on SmolLM2-135M-Instruct, named `smollm2-correct` (docs/correct_model.md)."""
