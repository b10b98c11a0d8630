"""Processes or Ray for many independent tasks."""
