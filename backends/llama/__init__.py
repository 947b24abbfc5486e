"""A real model on this machine: llama-server in a child process.

Importing this needs no engine; starting one needs ``pip install 'kvalet[local]'``.
"""

from .backend import LlamaBackend
from .model import FetchProgress, cache_folder, default_model_path, fetch_default_model

__all__ = [
    "FetchProgress",
    "LlamaBackend",
    "cache_folder",
    "default_model_path",
    "fetch_default_model",
]
