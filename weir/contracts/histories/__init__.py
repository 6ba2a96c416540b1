"""Files of users: their last positives and the items that they have seen."""
