"""longloop: a whole agent run as one long-lived Response."""

__version__ = "0.1.0"
