"""XPlane: what jax.profiler and TensorFlow's profiler write."""
