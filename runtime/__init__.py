"""Everything that waits: the loop, traces, replay, sidecar and command line."""
