"""``weir up``: run all stages as supervised processes on one machine, with a status display and demos."""
