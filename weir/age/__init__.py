"""Loss of recall by the age of bundle and histories, as figures and as a report."""
