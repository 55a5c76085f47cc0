"""Constraints of factor matrices by their proximal operators, and ADMM for one mode."""
