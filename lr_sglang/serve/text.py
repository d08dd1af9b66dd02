"""For who still looks here: ``lr_sglang.delivery``, which programs use too."""

from lr_sglang.delivery import THINK, Delivery, Kind, Piece, Reasoning, Stops, beginning

__all__ = ["THINK", "Delivery", "Kind", "Piece", "Reasoning", "Stops", "beginning"]
