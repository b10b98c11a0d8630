"""Is this host fit for distributed training? Read, judged and explained; nothing is changed."""
