"""Verifiers, which decide whether two versions of a step agree, one in each file."""

from lr_sglang.verifiers.verifier_registry import Setup, make_verifier

__all__ = ["Setup", "make_verifier"]
