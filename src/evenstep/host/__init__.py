"""Facts of the host: processors, devices, control groups, limits."""
