"""Findings to pages people look at: the terminal and one self-contained HTML file."""
