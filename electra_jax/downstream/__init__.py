"""Curves: downstream scores, and held-out numbers, of runs against the operations that their pre-training took."""
