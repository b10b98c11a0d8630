"""The version of evenstep."""

__version__ = "0.1.0"
