"""The internal names of SGLang that lr-sglang uses, with the reasons; they are checked before use.

Only ``interpreter`` imports SGLang, for the rest of the package.
"""
