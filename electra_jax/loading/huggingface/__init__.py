"""Reads and writes Hugging Face directories: weights, config, tokenizer, model card. PyTorch is not needed."""
