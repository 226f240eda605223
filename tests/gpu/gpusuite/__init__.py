"""What the GPU tests have in common: inputs, references, comparisons, memory, and the report."""
