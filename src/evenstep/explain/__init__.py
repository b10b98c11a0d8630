"""Arithmetic that explains a number: what goes in, the formula with its source, what comes out."""
