"""The failure modes, a module each, and their catalogue."""
