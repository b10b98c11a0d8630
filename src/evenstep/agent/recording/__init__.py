"""What a rank records of its steps, on the job's own threads."""
