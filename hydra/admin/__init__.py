"""Hydra's nodes in the operators' pages."""

from hydra.admin.event import EventAdmin
from hydra.admin.node import NodeAdmin

__all__ = ["EventAdmin", "NodeAdmin"]
