"""Tables of nonzeros, and radix sorts of them by their indices."""
