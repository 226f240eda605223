"""Compile translation units: what is compiled, where objects are kept, and in which order."""
