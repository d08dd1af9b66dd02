"""What of SGLang's language lr-sglang uses, its internals too: ``interpreter`` imports it for the
rest of the package. What runs inside of SGLang's servers imports it by itself.
"""
