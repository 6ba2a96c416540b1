"""Learning and testing outside the stream: data, a split, a fit, a ranking, a report."""
