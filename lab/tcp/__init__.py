"""Hosts as network namespaces, leaves as bridges, uplinks shaped by the kernel: real TCP."""
