"""JAX: its calls seen from one process."""
