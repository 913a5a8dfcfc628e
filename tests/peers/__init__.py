"""Third-party clients, as they come, and what it takes to run and watch them."""
