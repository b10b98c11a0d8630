"""Ranks of a busy-polling MPI, more of them than cores: what spinning takes from a late rank."""
