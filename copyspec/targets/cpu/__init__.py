"""Layers of passes of few tokens on a CPU, by the compiled module. The eager runner uses them."""
