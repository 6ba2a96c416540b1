"""`weir inspect`: what is in a store."""
