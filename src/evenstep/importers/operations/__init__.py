"""Operation tables: one row for each operation of a rank."""
