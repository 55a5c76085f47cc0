"""CUDA for the partitioner: compiled code, copies, and the sort of nonzeros on a GPU."""
