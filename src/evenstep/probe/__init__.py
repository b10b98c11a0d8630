"""A preflight of a minute: what each rank, each link and the whole can do before a job starts."""
