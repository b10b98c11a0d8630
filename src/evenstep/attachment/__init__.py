"""Attaching to a training process: on top of the hooks, below the frameworks."""
