"""FlashInfer's own Python package, run beside ours on the objects that our wheel is linked from."""
