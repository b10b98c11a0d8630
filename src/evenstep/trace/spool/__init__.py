"""A rank's trace on disk: layout, writer, folder of a run, identity."""
