"""Traces and verdicts for other tools.

    Perfetto   TrackEvent, by our own small encoder                       perfetto.py
    Parquet    events, steps and findings                                 parquet.py
    Prometheus text format, in a file or from one port a node             prometheus.py
    OTLP       metrics pushed over HTTP, JSON-encoded                     posting.py
    Trackers   W&B, TensorBoard, MLflow through their own API             trackers.py
    anonymise  a trace without names, so that it can be shown around      anonymise.py

To add a format: a module with one function that takes a `Trace`, and an action in `cli/export.py`.
"""
