"""From text to token records to batches, without JAX.

The text passes through readers.py, local_runner.py, shards.py, tokenizer.py, records.py and batches.py, in this order;
pipeline.py calls them.
"""
