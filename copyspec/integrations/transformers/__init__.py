"""copyspec as the decoding loop of `model.generate`: `custom_generate=copyspec.hf`."""

from copyspec.integrations.transformers.hf import CustomGenerate, generate, hf

__all__ = ["CustomGenerate", "generate", "hf"]
