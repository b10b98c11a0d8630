"""Alignment of the hosts' clocks to one reference."""
