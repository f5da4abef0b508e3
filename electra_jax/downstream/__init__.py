"""Downstream evaluation: tasks, fine-tuning, and scores against the compute of pre-training."""
