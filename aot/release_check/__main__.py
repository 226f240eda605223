"""``python -m aot.release_check``."""

from aot.release_check.commands import main

main()
