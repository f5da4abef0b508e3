"""Loads trained networks from run checkpoints, exports and Hugging Face directories; `Model`, export, warm start."""
