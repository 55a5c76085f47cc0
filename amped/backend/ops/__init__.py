"""The operations of devices: a protocol for the providers of each."""
