"""The child process: llama-server out of the xllamacpp wheel, bound to this machine.

``python -m kvalet.backends.llama.serve SETTINGS`` prints one line of JSON, either
``{"url": …, "build": …}`` or ``{"error": …}``, and then serves until its standard input
closes. The parent holds the other end, so the server cannot outlive it: not after a
crash, not after SIGKILL. A parent that stops the server says a word first; one that
says nothing is gone, and its slot files are removed here.
"""

import importlib
import json
import os
import shutil
import signal
import socket
import sys
from typing import Any


def main() -> None:
    """Serve as the settings in the first argument say."""
    # Ctrl-C is for the parent, which still has slots to save.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings: dict[str, Any] = json.loads(sys.argv[1])
    answer, server = _serve(settings)
    print(json.dumps(answer), flush=True)
    if server is None:
        return  # an orderly end, in which the engine finishes its log
    # Nobody reads standard output from here on; a full pipe would stop the server.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if not sys.stdin.buffer.read():
        shutil.rmtree(settings["slot_dir"], ignore_errors=True)
    # A decode may be running in another thread; an orderly stop would wait for it.
    os._exit(0)


def _serve(settings: dict[str, Any]) -> tuple[dict[str, str], Any]:
    port = settings["port"]
    if port and not _is_free(port):
        return {"error": f"port {port} on 127.0.0.1 is in use"}, None
    try:
        xllamacpp: Any = importlib.import_module("xllamacpp")
        server = xllamacpp.Server(_parameters(xllamacpp, settings))
    except (ImportError, RuntimeError) as error:
        return {"error": str(error)}, None
    build = f"xllamacpp {xllamacpp.__version__}"
    return {"url": server.listening_address, "build": build}, server


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _parameters(xllamacpp: Any, settings: dict[str, Any]) -> Any:
    slots: int = settings["slots"]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings["model_path"]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = settings["port"]
    parameters.n_parallel = slots
    parameters.n_ctx = slots * settings["context_tokens"]
    parameters.n_batch = settings["batch_tokens"]
    parameters.n_ubatch = settings["batch_tokens"]
    parameters.cpuparams.n_threads = settings["threads"]
    parameters.cpuparams_batch.n_threads = settings["threads"]
    # One call per slot, and the erase that follows a cancelled one.
    parameters.n_threads_http = 2 * slots + 4
    # The server joins the two without a separator.
    parameters.slot_save_path = os.path.join(settings["slot_dir"], "")
    # One stream per slot: a session never scans, evicts or fragments another's cells.
    parameters.kv_unified = False
    # The server's own caches would keep, and hand around, what the scheduler dropped.
    parameters.cache_ram_mib = 0
    parameters.cache_idle_slots = False
    # Without the full window a restored state of such a model cannot be continued.
    parameters.swa_full = True
    # Sizes are ours to decide; the server must not shrink them to fit.
    parameters.fit_params = False
    parameters.endpoint_slots = True
    parameters.endpoint_metrics = True
    parameters.warmup = False
    parameters.verbosity = 1
    return parameters


if __name__ == "__main__":
    main()
