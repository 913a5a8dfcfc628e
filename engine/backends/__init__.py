"""Where tokens come from: the local model, a remote service, or a script."""
