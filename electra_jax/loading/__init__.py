"""Everything that is already trained: run checkpoints, exports and Hugging Face directories; the front door's Model."""
