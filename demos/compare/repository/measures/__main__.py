"""`python -m measures QUANTITY UNIT`."""

from measures.cli import main

main()
