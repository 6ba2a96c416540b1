"""What the log says of users beside what they did: their features, which come with each example."""
