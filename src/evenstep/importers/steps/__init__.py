"""Formats that have only the duration of each worker's steps: tables and training logs."""
