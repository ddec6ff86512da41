"""How time enters a network: age encoding, rotary encoding of time, bias by the gap between two times.

B subjects, Q looking rows (queries or events), L rows looked at, H heads, Dh head width, G distinct gaps.

Angles and gaps are formed in float64: 40,000 days against a wavelength of 60 days leave too few digits in float32.
"""

import math

import torch
from torch import Tensor, nn

from data_schemas.age_units import DAYS_PER_YEAR

_LEGENDRE_SPAN_YEARS = 100.0  # ages 0 … 100 are mapped to -1 … 1
_N_LEGENDRE = 5  # P0 … P4
_SINUSOID_WAVELENGTHS_YEARS = (0.5, 200.0)
_ROTARY_WAVELENGTHS_DAYS = (60.0, 120.0 * DAYS_PER_YEAR)
_GAP_CENTRES_DAYS = (1.0, 80.0 * DAYS_PER_YEAR)  # the first of the 16 centres is 0
N_GAP_FEATURES = 16
HIDDEN = -1e9  # the bias of a row that must not be seen: after the softmax exactly zero, in bfloat16 as well


def log_spaced(low: float, high: float, count: int) -> Tensor:
    """Return `count` numbers from low to high at equal ratios, float64."""
    return torch.exp(torch.linspace(math.log(low), math.log(high), count, dtype=torch.float64))


class AgeEncoding(nn.Module):
    """Age as a vector: a linear map of Legendre polynomials plus a parameter-free sinusoidal encoding.

    The polynomials carry slow trends over a life, the sinusoids tell near ages apart.
    """

    wavelengths_years: Tensor

    def __init__(self, width: int) -> None:
        """Make the linear map 5 → width; the sinusoids have no parameters."""
        super().__init__()
        self.legendre_proj = nn.Linear(_N_LEGENDRE, width, bias=False)
        wavelengths = log_spaced(*_SINUSOID_WAVELENGTHS_YEARS, width // 2)
        self.register_buffer("wavelengths_years", wavelengths, persistent=False)

    def forward(self, age_days: Tensor) -> Tensor:
        """Map ages [...] in days to vectors [...,D]."""
        age_years = age_days.double() / DAYS_PER_YEAR
        sinusoids = _sinusoids(age_years, self.wavelengths_years) * SINUSOID_SCALE
        weight = self.legendre_proj.weight
        encoded: Tensor = self.legendre_proj(_legendre(age_years).to(weight.dtype)) + sinusoids.to(weight.dtype)
        return encoded


class SinusoidalAge(nn.Module):
    """Age as sinusoids through a linear map, as in Delphi."""

    wavelengths_years: Tensor

    def __init__(self, width: int) -> None:
        """Make the map width → width."""
        super().__init__()
        self.sinusoid_proj = nn.Linear(width, width, bias=False)
        wavelengths = log_spaced(*_SINUSOID_WAVELENGTHS_YEARS, width // 2)
        self.register_buffer("wavelengths_years", wavelengths, persistent=False)

    def forward(self, age_days: Tensor) -> Tensor:
        """Map ages [...] in days to vectors [...,D]."""
        sinusoids = _sinusoids(age_days.double() / DAYS_PER_YEAR, self.wavelengths_years)
        encoded: Tensor = self.sinusoid_proj(sinusoids.to(self.sinusoid_proj.weight.dtype))
        return encoded


def _sinusoids(age_years: Tensor, wavelengths_years: Tensor) -> Tensor:
    angles = 2 * math.pi * age_years[..., None] / wavelengths_years
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


# The sinusoids are as large as a token embedding at its start; at full size they would drown it.
TOKEN_STD = 0.1
SINUSOID_SCALE = TOKEN_STD


def _legendre(age_years: Tensor) -> Tensor:
    """P0 … P4 of age scaled to -1 … 1; [...] → [...,5]."""
    x = 2 * age_years / _LEGENDRE_SPAN_YEARS - 1
    return torch.stack(
        [torch.ones_like(x), x, (3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2, (35 * x**4 - 30 * x**2 + 3) / 8], dim=-1
    )


class TimeRotation(nn.Module):
    """Rotary encoding of time: pairs (i, i + width/2) turn by 2π·age/wavelength, so products see differences only.

    Su et al. 2021 (arXiv:2104.09864) with times in place of positions.
    """

    wavelengths_days: Tensor

    def __init__(self, width: int) -> None:
        """Space width/2 wavelengths evenly in logarithm from 60 days to 120 years."""
        super().__init__()
        wavelengths = log_spaced(*_ROTARY_WAVELENGTHS_DAYS, width // 2)
        self.register_buffer("wavelengths_days", wavelengths, persistent=False)

    def angles(self, age_days: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosine and sine [width/2,...] for ages [...]."""
        wavelengths = self.wavelengths_days.view(-1, *[1] * age_days.dim())
        angles = 2 * math.pi * age_days.double() / wavelengths
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(vectors: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn vectors [H,width,...] by angles whose cosine and sine are [width/2,...]."""
    first, second = vectors.chunk(2, dim=1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=1)


class GapFeatures(nn.Module):
    """Gaussian features of the time between two rows, on the scale of log1p(gap in days).

    phi_j = exp(-((log1p(gap) - log1p(c_j)) / w_j)^2 / 2); 16 fixed centres c_j (0, then 1 day … 80 years), learned
    log-widths.
    """

    log_centres: Tensor

    def __init__(self) -> None:
        """Start the widths at the mean spacing of the centres."""
        super().__init__()
        centres = torch.cat([torch.zeros(1, dtype=torch.float64), log_spaced(*_GAP_CENTRES_DAYS, N_GAP_FEATURES - 1)])
        self.register_buffer("log_centres", torch.log1p(centres), persistent=False)
        spacing = self.log_centres.diff().mean().item()
        self.log_widths = nn.Parameter(torch.full((N_GAP_FEATURES,), math.log(spacing)))

    def forward(self, gap_days: Tensor) -> Tensor:
        """Map gaps [...] in days, none below 0, to features [...,16]."""
        distance = (torch.log1p(gap_days)[..., None] - self.log_centres).to(self.log_widths.dtype)
        return torch.exp(-0.5 * (distance / self.log_widths.exp()) ** 2)


class GapBias(nn.Module):
    """Attention bias from gap features, a linear map to heads that starts at zero: attention starts unbiased."""

    def __init__(self, n_heads: int) -> None:
        """Start the map at zero and its scale at one, so that the map has a gradient from the first step."""
        super().__init__()
        self.rbf_proj = nn.Linear(N_GAP_FEATURES, n_heads, bias=False)
        self.time_bias_scale = nn.Parameter(torch.ones(()))
        nn.init.zeros_(self.rbf_proj.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Map the features [G,16] of distinct gaps to their biases [H,G+1]; the last one hides a row."""
        bias: Tensor = self.time_bias_scale * self.rbf_proj(features).t()
        return torch.cat([bias, bias.new_full((len(bias), 1), HIDDEN)], dim=1)


def hiding_bias(n_heads: int, like: Tensor) -> Tensor:
    """Return the biases [H,2] of a network without relative time: entry 0 is seen, entry 1 hidden."""
    return like.new_tensor([0.0, HIDDEN]).expand(n_heads, 2)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # how many gaps there are depends on the data
def distinct_gaps(later_age_days: Tensor, earlier_age_days: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct gaps [G] between rows in days, float64, and which of them each pair has [B,Q,L].

    Gaps of whole days are a table of every day up to the largest gap of the batch, others are found by sorting. A bias
    of gaps is then a map of G numbers and a look-up, however many pairs have the same gap. Hidden pairs have entry G.

    Args:
        later_age_days: ages of the rows that look [B,Q]; one that lies ahead has gap 0.
        earlier_age_days: ages of the rows looked at [B,L].
        visible: [B,Q,L].
    """
    gaps = (later_age_days.double()[:, :, None] - earlier_age_days.double()[:, None, :]).clamp(min=0)
    gaps = torch.where(visible, gaps, 0.0)
    if gaps.numel() > 0 and gaps.max() < gaps.numel() and bool((gaps == gaps.floor()).all()):
        distinct = torch.arange(int(gaps.max()) + 1, dtype=torch.float64, device=gaps.device)
        entry = gaps.long()
    else:
        distinct, entry = torch.unique(gaps, return_inverse=True)
    return distinct, torch.where(visible, entry, len(distinct))
