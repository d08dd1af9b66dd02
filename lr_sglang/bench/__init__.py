"""The variants of a run or benchmark, their order and their servers, and what makes the samples."""
