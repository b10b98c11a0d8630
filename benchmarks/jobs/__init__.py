"""What the benchmarks start as processes of their own; each prints one JSON object on rank 0."""
