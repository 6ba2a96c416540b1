"""Reproduces a bundle by retraining on its windows, and compares it with the stored one."""
