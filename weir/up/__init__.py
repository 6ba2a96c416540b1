"""``weir up``: every stage as a process on one machine, supervised, watched, and shown; demos included."""
