"""C++ that depends on the plan: the kernel table of the library, and the schema probe."""
