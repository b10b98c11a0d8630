"""How long each worker's steps took, as tables and training logs tell it, and nothing else."""
