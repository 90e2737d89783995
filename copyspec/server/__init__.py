"""A small server for one model on one machine: OpenAI's chat and completions, over the engine's scheduler.

Nothing here is imported with the package: FastAPI, uvicorn and prometheus-client are those of `copyspec[serve]`.
"""
