"""Where a framework meets the agent."""
