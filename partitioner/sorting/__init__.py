"""Tables of nonzeros, and radix sorts of nonzeros by their indices."""
