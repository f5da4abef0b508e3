"""Downstream tasks: their files, how examples are encoded, what is made of a model's outputs, scores. No JAX here."""
