"""Public data sets as logs that weir reads."""
