"""Estimates with their errors: intervals, trends, spectra, tails."""
