"""C and C++ sources of the package, compiled once for a user and a machine.

A launcher calls `build` before its processes start; these call `find`, which starts no process, and
load the library with `ctypes`. Neither raises: without a library they give the reason, and the
caller goes on without it.
"""

from evenstep.compiled.library import Library, LibrarySource, build, find

__all__ = ["Library", "LibrarySource", "build", "find"]
