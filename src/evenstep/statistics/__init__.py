"""Estimates with their errors: the one home of intervals, trends, periods and tails.

    Estimate    a value with its interval; resampled blocks of steps       interval.py
    Trend       Theil-Sen slope, Mann-Kendall, isotonic fit; association   trend.py
    Peak        the period of a series, even or not                        spectrum.py
    Noise       a distribution with the family of tail that fits           tails.py
    Outliers    which of several series stand out beyond the noise         outliers.py

On SciPy (the `analyze` extra), imported where it is first needed; outliers need only the standard
library.
"""
