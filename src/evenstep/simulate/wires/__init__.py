"""How messages share links."""
