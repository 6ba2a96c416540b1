"""How often the stream carries each item and user, as log Q."""
