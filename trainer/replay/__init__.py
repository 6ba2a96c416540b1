"""A bundle made again from its windows, and compared with what is stored."""
