"""Conversion of public data sets to logs for weir."""
