"""Other tools' files as traces: found by their content, never by their name."""
