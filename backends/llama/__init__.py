"""A real model on this machine: llama-server in a child process.

Importing this needs no engine; starting one needs ``pip install 'kvalet[local]'``.
"""

from .backend import LlamaBackend

__all__ = ["LlamaBackend"]
