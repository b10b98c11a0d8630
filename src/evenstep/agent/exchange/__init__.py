"""What ranks tell each other while the job runs, and what is made of it."""
