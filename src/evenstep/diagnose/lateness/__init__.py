"""Who is late, when and of what, and what that costs."""
