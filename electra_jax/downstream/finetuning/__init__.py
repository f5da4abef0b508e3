"""Fine-tuning: recipes, losses, learning rates by layer, seeds trained at once."""
