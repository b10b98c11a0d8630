"""A scenario that behaves like a run."""
