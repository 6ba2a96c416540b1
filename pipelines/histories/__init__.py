"""Histories of users: rebuilt from windows, merged beside the stream."""
