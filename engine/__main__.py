"""`python -m engine` is `longloop`."""

from engine.cli import main

main()
