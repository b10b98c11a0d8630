"""Settings of a process, the part of a job that they apply to, and requests while it runs."""
