"""The paper's tables, computed anew."""
