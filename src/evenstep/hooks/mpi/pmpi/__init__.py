"""Observe MPI programs in any language: a shim built on demand, its files made into spools."""
