"""Sources: tensors in files, stores or memory, from which each rank gets its nonzeros or its block."""
