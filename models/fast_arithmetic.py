"""Options that make a step faster where the machine can: products in bfloat16 and a compiled backbone.

An option that does not work here is left out with a note; the numbers are then those of the plain form.
"""

from dataclasses import dataclass

import torch

from models.config import TrainConfig
from models.risk_model import RiskModel


@dataclass(frozen=True)
class Arithmetic:
    """How a step computes, and what a person should know of it."""

    device_type: str
    bfloat16: bool
    notes: tuple[str, ...]

    def autocast(self) -> torch.autocast:
        """Return the context that a forward pass runs in; hazards and likelihood stay float32 inside it."""
        return torch.autocast(self.device_type, torch.bfloat16, enabled=self.bfloat16)


def prepare_arithmetic(config: TrainConfig, model: RiskModel) -> Arithmetic:
    """Compile the backbone of `model` where the config asks for it, and say what the device cannot do."""
    device = next(model.parameters()).device
    notes = []
    if config.compile:
        reason = _why_nothing_compiles(device)
        if reason is None:
            model.backbone.compile_hot_loop()
        else:
            notes.append(f"compile: torch.compile does not work here, the plain form runs ({reason})")
    bfloat16 = config.autocast_bfloat16 and _computes_in_bfloat16(device)
    if config.autocast_bfloat16 and not bfloat16:
        notes.append("autocast_bfloat16: this processor has no bfloat16 arithmetic, float32 is used")
    return Arithmetic(device.type, bfloat16, tuple(notes))


def _computes_in_bfloat16(device: torch.device) -> bool:
    """Say whether bfloat16 is an arithmetic of the hardware: emulated it is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return False


def _why_nothing_compiles(device: torch.device) -> str | None:
    """Compile something tiny and return the kind of error, or None where it works: no C++ compiler is the usual one."""

    def tiny(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + 1.0

    try:
        torch.compile(tiny)(torch.ones(4, device=device))
    except Exception as error:  # whatever stands in the way of an option is a reason to do without it
        return type(error).__name__
    return None
