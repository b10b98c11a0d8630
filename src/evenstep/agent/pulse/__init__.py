"""Whether a rank goes on, and where it is when it does not."""
