"""Kineto: torch.profiler's Chrome traces."""
