"""Turns text into token records and these into batches, without JAX.

Text passes through readers.py, local_runner.py, shards.py, tokenizer.py, records.py and batches.py, in this order;
pipeline.py calls them.
"""
