"""Build side of fp4aot: FlashInfer's JIT specifications in, wheels out.

Nothing in this package is installed with the wheel, and nothing here imports ``fp4aot``.
"""
