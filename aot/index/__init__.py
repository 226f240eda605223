"""A static package index made of finished wheels: what pip and uv install from, and one page.

The index is a folder of files that any web server serves: one simple index per CUDA version, and
a page that tells a person which of them to use.
"""

from aot.index.collect import CudaIndex, collect
from aot.index.site import Site, write_site
from aot.index.wheel import IndexedWheel, read_wheel

__all__ = ["CudaIndex", "IndexedWheel", "Site", "collect", "read_wheel", "write_site"]
