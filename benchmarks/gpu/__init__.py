"""What is to be measured on a GPU: docs/gpu.md. Every part runs on a CPU too, on tiny models, to be tested."""
