"""The operators in plain PyTorch: their CPU kernels, and what the tests hold the GPU against.

Functions carry their operator's name; `<name>_out` is the overload that writes to the caller's
buffers. Every one validates its arguments first, with the same text as the C++ kernels.
"""
