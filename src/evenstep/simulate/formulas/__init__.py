"""Closed forms: what a cluster does before anybody simulates it. Standard library only."""
