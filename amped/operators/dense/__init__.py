"""Dense tensors on all ranks."""
