"""The designs side by side on the same work."""
