"""Tools that the server runs itself, in the same loop as the client's."""
