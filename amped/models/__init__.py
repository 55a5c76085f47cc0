"""Models that decompositions return: CP, Tucker and semi-sparse tensors, with loading, saving and alignment."""
