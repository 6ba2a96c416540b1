"""All that training remembers, and its checkpoint."""
