"""Downstream tasks: read files, encode examples, turn outputs into answers, score them. Nothing here imports JAX."""
