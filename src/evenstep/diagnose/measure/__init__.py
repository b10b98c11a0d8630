"""What a trace says in numbers, before anything is concluded."""
