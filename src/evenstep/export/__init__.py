"""Traces and diagnoses in the formats of other tools.

    Perfetto   TrackEvent, with our own encoder                           perfetto/
    Parquet    events, steps and findings                                 parquet.py
    Prometheus text format, in a file or from one port per node           prometheus.py
    OTLP       metrics pushed over HTTP, JSON-encoded; findings to a webhook posting.py
    Trackers   W&B, TensorBoard, MLflow through their own API             trackers.py
    anonymise  a trace without host names, paths and user names           anonymise.py

To add a format: a module with one function that takes a `Trace`, and an option in `cli/export.py`.
"""
