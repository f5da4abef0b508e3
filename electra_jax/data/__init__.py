"""From text to token records to batches, without JAX.

The walk of a token: readers.py, local_runner.py, shards.py, tokenizer.py, records.py, batches.py; pipeline.py leads.
"""
