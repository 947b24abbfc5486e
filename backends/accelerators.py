"""Accelerators as cost models, by name.

Each constant says where it comes from: measured here, or a roofline (peak rates of the
data sheet times a stated efficiency). A roofline tells ratios, not seconds.

The roofline of ``h100``: Llama-3.1-8B in 16 bit (8.03e9 weights, 32 layers, hidden
size 4,096, 8 KV heads of 128: 131,072 bytes of KV per token) on one H100 SXM of 989e12
FLOP/s (half of it used) and 3.35e12 bytes/s (four fifths used). A token of prefill
costs 2 x weights FLOP, and 4 x layers x hidden for each token before it; a decode step
reads the weights once and the KV of every sequence. PCIe 5.0 x16 moves 50e9 bytes/s,
10 GbE 1.1e9.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from .errors import BackendError


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """The constants of the cost model.

    Prefill of n tokens behind c others takes
    ``n * (prefill_token_s + prefill_context_s * (c + n / 2))``;
    a decode step of a batch takes
    ``decode_step_s + sum over sequences (decode_sequence_s + decode_context_s * c)``;
    a copy takes ``copy_setup_s + bytes / rate``. With ``shared_compute``, as on one
    CPU, nobody gets a token while a prefill runs.

    The defaults are SmolLM2-135M on one thread of a shared x86 core, fitted to our own
    measurements (256 to 4,096 tokens: prefill 1.62 to 40 s, decode 24 to 76 ms a token,
    slot file 2.7 to 51 ms to save and 2.5 to 35 ms to restore).
    """

    prefill_token_s: float = 6.1e-3
    prefill_context_s: float = 1.8e-6
    decode_step_s: float = 18e-3
    decode_sequence_s: float = 2.7e-3
    decode_context_s: float = 13e-6
    copy_setup_s: float = 2e-3
    save_bytes_per_s: float = 1.9e9
    restore_bytes_per_s: float = 2.7e9
    bytes_per_token: int = 23_040
    shared_compute: bool = False

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 0:
                raise BackendError(f"{name} of the accelerator must not be negative")
        if not (self.save_bytes_per_s and self.restore_bytes_per_s):
            raise BackendError("the rates of the accelerator's link must not be zero")

    def prefill_s(self, new_tokens: int, context_tokens: int) -> float:
        """Return the seconds for *new_tokens* behind *context_tokens*."""
        depth = context_tokens + new_tokens / 2
        return new_tokens * (self.prefill_token_s + self.prefill_context_s * depth)

    def step_s(self, sequences: int, context_tokens: int) -> float:
        """Return the seconds of one decode step of a batch."""
        per_sequence = sequences * self.decode_sequence_s
        return (
            self.decode_step_s + per_sequence + context_tokens * self.decode_context_s
        )


_H100 = Accelerator(
    prefill_token_s=2 * 8.03e9 / (0.5 * 989e12),
    prefill_context_s=4 * 32 * 4096 / (0.5 * 989e12),
    decode_step_s=2 * 8.03e9 / (0.8 * 3.35e12),
    decode_sequence_s=5e-5,  # sampling and launch, by guess: a hundredth of the step
    decode_context_s=131_072 / (0.8 * 3.35e12),
    copy_setup_s=1e-3,
    save_bytes_per_s=50e9,
    restore_bytes_per_s=50e9,
    bytes_per_token=131_072,
)

# The constants of our own first policy study, which had two links.
_STUDY = Accelerator(
    prefill_token_s=1 / 15_000,
    prefill_context_s=2.2e-9,
    decode_step_s=8e-3,
    decode_sequence_s=1.5e-4,
    decode_context_s=0.0,
    copy_setup_s=0.0,
    save_bytes_per_s=190e3 * 131_072,
    restore_bytes_per_s=190e3 * 131_072,
    bytes_per_token=131_072,
)

ACCELERATORS: Mapping[str, Accelerator] = MappingProxyType(
    {
        "smollm2-cpu": Accelerator(shared_compute=True),
        "h100-pcie": _H100,
        "h100-10gbe": replace(_H100, save_bytes_per_s=1.1e9, restore_bytes_per_s=1.1e9),
        "study-fast": _STUDY,
        "study-slow": replace(
            _STUDY,
            save_bytes_per_s=8.4e3 * 131_072,
            restore_bytes_per_s=8.4e3 * 131_072,
        ),
    }
)
"""What ``--accelerator`` can name."""

ACCELERATOR_NAMES = tuple(ACCELERATORS)


def accelerator(name: str) -> Accelerator:
    """Return the accelerator of that name; raise BackendError with what is valid.

    >>> accelerator("smollm2-cpu").bytes_per_token
    23040
    """
    found = ACCELERATORS.get(name)
    if found is None:
        valid = ", ".join(ACCELERATOR_NAMES)
        raise BackendError(f"unknown accelerator {name!r}; valid are {valid}")
    return found
