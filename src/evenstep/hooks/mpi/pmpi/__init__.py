"""MPI programs in any language: a shim built on demand, and its files made into spools."""
