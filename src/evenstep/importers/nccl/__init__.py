"""NCCL's own words: debug logs, Inspector dumps, nccl-tests tables, probes of floors."""
