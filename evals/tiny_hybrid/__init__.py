"""The tiny hybrid model and its word problems: generator, training script, weights."""
