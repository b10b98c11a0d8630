"""Operation tables and messages: dependencies between operations."""
