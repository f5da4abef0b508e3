"""Downstream evaluation: tasks, fine-tuning, and curves of scores against pre-training compute."""
