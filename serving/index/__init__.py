"""The index of a bundle: search, filters, eligibility, cold items and diversity."""
