"""A run replayed with a change: what it would gain."""
