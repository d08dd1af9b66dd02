"""Grading: whether an answer is right, by the kind of its task."""
