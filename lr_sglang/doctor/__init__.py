"""What this machine, and servers that run already, can do; what is missing, and how to get it."""
