"""Files of a store: atomic and checked, local or remote; documents, locks and the store's format."""
