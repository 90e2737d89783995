"""A small HTTP server for one model: OpenAI's chat and completions endpoints, on top of the engine's scheduler.

`import copyspec` imports none of this: FastAPI, uvicorn and prometheus-client come with `copyspec[serve]`.
"""
