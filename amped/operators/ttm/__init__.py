"""Products of sparse tensors with matrices (SpTTM)."""
