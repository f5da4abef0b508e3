"""From text to batches of integers: sources, tokenizer, corpus, examples, loader. No JAX arrays here."""
