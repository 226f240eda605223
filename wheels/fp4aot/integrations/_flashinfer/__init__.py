"""FlashInfer's names, what stands for each of them, and when."""
