"""Grading: whether an answer is right, by the kind of its task."""

from lr_sglang.grading.grade import Grade
from lr_sglang.grading.grader import Grader

__all__ = ["Grade", "Grader"]
