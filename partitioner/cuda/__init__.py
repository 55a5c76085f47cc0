"""CUDA on the host side: compiled code, copies and the sort of nonzeros on a GPU."""
