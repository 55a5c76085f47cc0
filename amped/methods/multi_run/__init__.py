"""Several runs at once: CP-ALS and CP-APR from several starts or with several numbers of components."""
