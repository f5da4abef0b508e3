"""Fine-tuning: recipes, losses, layer-wise learning rates, several seeds at once."""
