"""Reproduce a bundle by retraining on its windows, and compare it with the stored one."""
