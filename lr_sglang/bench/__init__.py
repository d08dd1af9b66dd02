"""The variants of a benchmark, their order, and their servers. Starts no runtime."""
