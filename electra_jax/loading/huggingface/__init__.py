"""Models as Hugging Face directories, in and out: weights, config, tokenizer, card. PyTorch is not needed for any."""
