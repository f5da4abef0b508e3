"""Downstream tasks: read files, encode examples, decode outputs into answers, score them. Nothing here imports JAX."""
