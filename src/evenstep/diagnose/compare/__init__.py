"""Two runs or many beside each other: what changed, and how surely."""
