"""What a process is told: its settings, the part of a job they are for, requests while it runs."""
