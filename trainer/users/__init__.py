"""User features: how they travel with the examples, and the part of the model that reads them."""
