"""The integral of a cumulative incidence, to a stated error, where no closed form is known.

M pairs of a row and a cause, T horizons, 15 nodes of a panel. Everything is float64: at a shape of 0.1 the first nodes
lie at times that float32 rounds to 0.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

_SMOOTHNESS = 3.0  # u = end·s^m makes every cumulative hazard rise from s = 0 as s³ or faster
_NOTHING_LEFT = 30.0  # cumulative hazard after which e^-30 = 1e-13 of the people are left
_TOLERANCE = 1e-8  # between the two rules of a panel, relative to the risk without death; the finer rule is far closer
_MOST_HALVINGS = 16  # of a panel; shapes of 0.1 to 10 need 7 at most

# Gauss–Kronrod on (-1, 1): 15 nodes, of which every second makes a Gauss rule of 7 (Piessens et al. 1983, QUADPACK).
_HALF_NODES = (
    0.991455371120812639206854697526329,
    0.949107912342758524526189684047851,
    0.864864423359769072789712788640926,
    0.741531185599394439863864773280788,
    0.586087235467691130294144838258730,
    0.405845151377397166906606412076961,
    0.207784955007898467600689403773245,
)
_HALF_FINE_WEIGHTS = (
    0.022935322010529224963732008058970,
    0.063092092629978553290700663189204,
    0.104790010322250183839876322541518,
    0.140653259715525918745189590510238,
    0.169004726639267902826583426598550,
    0.190350578064785409913256402421014,
    0.204432940075298892414161999234649,
)
_HALF_COARSE_WEIGHTS = (
    *(0.0, 0.129484966168869693270611432679082, 0.0, 0.279705391489276667901467771423780),
    *(0.0, 0.381830050505118944950369775488975, 0.0),
)
NODES = (*(-x for x in _HALF_NODES), 0.0, *reversed(_HALF_NODES))
FINE_WEIGHTS = (*_HALF_FINE_WEIGHTS, 0.209482141084727828012999174891714, *reversed(_HALF_FINE_WEIGHTS))
COARSE_WEIGHTS = (*_HALF_COARSE_WEIGHTS, 0.417959183673469387755102040816327, *reversed(_HALF_COARSE_WEIGHTS))


class Law(Protocol):
    """What the integral must know of a hazard h(u) with cumulative hazard H(u), elementwise in its parameters."""

    def at_log_time(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        """Return u·h(u) and H(u) at u = exp(log_u)."""

    def log_time_of(self, cumulative: float) -> Tensor:
        """Return the logarithm of a time by which H is at least `cumulative`, and at most a few times that."""

    def slowest_power(self) -> Tensor:
        """Return the smallest exponent, at most 1, with which H rises anywhere on (0, ∞): H ~ u^exponent."""

    def map_parameters(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the law with `function` applied to each tensor of parameters."""


def cumulative_incidence(cause: Law, death: Law, horizons_years: list[float]) -> Tensor:
    """Return ∫₀ʰ h·exp(-H - H_death) du [M,T] for M causes and the death law of the same rows.

    One integral a stretch between two horizons, so the risks grow with the horizon by construction. Times beyond the
    one where nobody is left are not looked at. Each stretch is one panel of 15 Gauss–Kronrod nodes in s, u = end·s^m;
    panels where its two rules disagree are halved, alone, until they do not. Gradients take the nodes as given.

    Args:
        cause: parameters [M], float64.
        death: likewise.
        horizons_years: T times above zero, ascending.
    """
    with torch.no_grad():
        log_horizons = torch.tensor(horizons_years, dtype=torch.float64, device=cause.slowest_power().device).log()
        log_end = torch.minimum(cause.log_time_of(_NOTHING_LEFT), death.log_time_of(_NOTHING_LEFT))
        log_end = torch.minimum(log_end, log_horizons[-1])
        power = _SMOOTHNESS / cause.slowest_power()
        tolerance = -_TOLERANCE * torch.expm1(-cause.at_log_time(log_end)[1])
        edges = torch.exp((log_horizons[:, None] - log_end) / power).clamp(max=1.0)  # [T,M] in s
    stretches, low = [], torch.zeros_like(log_end)
    for high in edges:
        stretches.append(_integrate(_Panels(cause, death, log_end, power, tolerance, low, high), _MOST_HALVINGS))
        low = high
    return torch.stack(stretches, dim=-1).cumsum(-1)


@dataclass(frozen=True)
class _Panels:
    """M integrals over s in [low, high]; every tensor is [M]."""

    cause: Law
    death: Law
    log_end: Tensor
    power: Tensor
    tolerance: Tensor
    low: Tensor
    high: Tensor

    def take(self, chosen: Tensor) -> "_Panels":
        names = ("log_end", "power", "tolerance", "low", "high")
        laws = {name: getattr(self, name).map_parameters(lambda p: p[chosen]) for name in ("cause", "death")}
        return replace(self, **laws, **{name: getattr(self, name)[chosen] for name in names})


def _integrate(panels: _Panels, halvings_left: int) -> Tensor:
    fine: Tensor
    coarse, fine = _both_rules(panels)
    if halvings_left == 0:
        return fine
    unsure = ((fine - coarse).abs() > panels.tolerance).nonzero()[:, 0]
    if len(unsure) == 0:
        return fine
    rest = panels.take(unsure)
    middle = (rest.low + rest.high) / 2
    left = _integrate(replace(rest, high=middle), halvings_left - 1)
    right = _integrate(replace(rest, low=middle), halvings_left - 1)
    return fine.index_put((unsure,), left + right)


def _both_rules(panels: _Panels) -> Tensor:
    """Return the integrals by 7 and by 15 nodes [2,M]."""
    device = panels.low.device
    node = (torch.tensor(NODES, dtype=torch.float64, device=device)[:, None] + 1) / 2
    weights = torch.tensor((COARSE_WEIGHTS, FINE_WEIGHTS), dtype=torch.float64, device=device) / 2
    width = panels.high - panels.low
    s = panels.low + width * node  # [15,M]
    log_u = panels.log_end + panels.power * s.log()
    hazard, cumulative = panels.cause.at_log_time(log_u)  # u·h and H; du/ds = u·m/s
    density = hazard * torch.exp(-cumulative - panels.death.at_log_time(log_u)[1]) / s
    return (weights @ density) * (panels.power * width)
