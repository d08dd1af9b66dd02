"""Lookahead reasoning from Python (docs/python.md), and the runner of many samples."""
