"""Foreign recordings, read as traces: one module for each format."""

from .importer import Importer

__all__ = ["Importer"]
