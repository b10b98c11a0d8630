"""HTML pages: one file each, that opens from disk."""
