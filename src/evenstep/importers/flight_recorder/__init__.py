"""torch's flight recorder dumps."""
