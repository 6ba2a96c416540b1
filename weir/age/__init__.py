"""What the age of a bundle and of histories costs in recall, as figures and as a report."""
