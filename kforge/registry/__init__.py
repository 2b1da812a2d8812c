"""The kernel database: what was tried, what won, and why it is served."""
