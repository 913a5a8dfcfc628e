"""The commands behind `longloop`, one module each."""
