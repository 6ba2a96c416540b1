"""The trainer's settings; loads no torch."""
