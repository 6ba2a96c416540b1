"""What ranks say to each other."""
