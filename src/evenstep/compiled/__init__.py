"""Sources in C and C++ that the package ships, compiled once for a user and a machine.

A launcher calls `build` before its processes start; they call `find`, which starts nothing, and
load what it names with `ctypes`. Both say why where there is no library: the caller then goes on
without it. Nothing here raises.
"""

from evenstep.compiled.library import Library, LibrarySource, build, find

__all__ = ["Library", "LibrarySource", "build", "find"]
