"""Trained networks: reads run checkpoints, exports and Hugging Face directories; `Model`, export and warm start."""
