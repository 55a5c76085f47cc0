"""The protocol of each operation: what a device's provider of it takes, holds and computes."""
