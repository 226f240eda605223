"""What the references are made of: formats, blocks that share a scale, recipes, activations."""
