"""What lr-sglang uses of SGLang's insides: each name with its reason, checked before it is used.

Nothing here imports SGLang; ``lang`` does, for the rest of the package.
"""
