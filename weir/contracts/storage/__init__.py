"""Files of a store: atomic, checked, local or remote; documents, locks and formats."""
