"""An endpoint of several processes on one port: their parent, and what they share."""
