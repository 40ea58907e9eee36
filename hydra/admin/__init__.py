"""Hydra's nodes in the admin."""

from hydra.admin.event import EventAdmin
from hydra.admin.node import HydraNodeAdmin
