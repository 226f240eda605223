"""Benchmarks on a GPU, from an installed wheel, with FlashInfer beside: ``run.py``."""
