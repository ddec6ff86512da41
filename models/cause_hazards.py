"""Cause-specific hazards after a query, and the risks that follow from them with death competing.

K outcomes, T horizons; leading dimensions are free ([B,Q] or [N] as a rule). u is the time after the query in years.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from models.risk_quadrature import cumulative_incidence

_LARGEST_EXPONENT = 0.8  # share of the largest logarithm of a number, see `_exp`
_PAIRS_AT_ONCE = 1 << 14  # in float64 with 15 nodes each: 2 MB a tensor


class CauseHazards(ABC):
    """Hazards h_k(u) of K causes. `risk` competes each of them with death alone, never with other diseases."""

    death_outcome: int

    @abstractmethod
    def log_hazard(self, u_years: Tensor) -> Tensor:
        """Return log h_k(u) [...,K], per year, at times u > 0 that broadcast to [...,K]."""

    @abstractmethod
    def cumulative_hazard(self, u_years: Tensor) -> Tensor:
        """Return H_k(u) [...,K] at times u >= 0 that broadcast to [...,K]; H_k(0) = 0 with finite gradients."""

    @abstractmethod
    def after(self, elapsed_years: Tensor) -> "CauseHazards":
        """Return the law of the time that remains when nothing has happened for u₀ >= 0 years [...,1].

        h(u₀ + u) and H(u₀ + u) - H(u₀). With u₀ from the last row of a history to a landmark this freezes the history:
        events that may follow do not change the hazards (risks from it are labelled `frozen_history`).
        """

    @abstractmethod
    def at_log_time(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        """Return u·h_k(u) and H_k(u) at u = exp(log_u)."""

    @abstractmethod
    def log_time_of(self, cumulative: float) -> Tensor:
        """Return the logarithm of a time by which H_k is at least `cumulative`, and at most a few times that."""

    @abstractmethod
    def slowest_power(self) -> Tensor:
        """Return the smallest exponent, at most 1, with which H_k rises anywhere on (0, ∞): H_k ~ u^exponent."""

    @abstractmethod
    def map_parameters(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the law with `function` applied to each tensor of parameters [...,K]."""

    def pick(self, rows: Tensor, causes: Tensor) -> Self:
        """Return the law of M chosen pairs, with parameters [M]; without an axis of causes it has no `risk`.

        Args:
            rows: [M], numbered over all leading dimensions.
            causes: [M] columns.
        """
        return self.map_parameters(lambda p: _as_rows(p)[rows, causes])

    def total_at_risk(self, u_years: Tensor, at_risk: Tensor) -> Tensor:
        """Return Σ_k H_k(u) over the causes at risk [...], for one time u a row [...]; `at_risk` is [...,K] bool."""
        return torch.where(at_risk, self.cumulative_hazard(u_years[..., None]), 0.0).sum(-1)

    def risk(self, horizons_years: Tensor) -> Tensor:
        """Return the cumulative incidence [...,K,T] at T horizons >= 0, float64.

        risk_k(h) = ∫₀ʰ h_k exp(-H_k - H_death) du, and 1 - exp(-H_death) for death (Prentice et al. 1978), by
        adaptive quadrature (`risk_quadrature`). For shapes from 0.1 to 10, scales from an hour to a million years and
        any horizon the error is below 1e-8, and below 1e-6 where time has already elapsed (`after`).
        """
        horizons, order = horizons_years.double().sort()
        law = self.map_parameters(lambda p: _as_rows(p.double()))
        risks = torch.cat([law._risk_of_rows(horizons, rows) for rows in _chunks(law.slowest_power())])
        return risks[..., order.argsort()].view(*self.slowest_power().shape, len(order))

    def _risk_of_rows(self, horizons_years: Tensor, rows: slice) -> Tensor:
        """Return the risks of some rows of a law [N,K] at ascending horizons."""
        law = self.map_parameters(lambda p: p[rows])  # [n,K]
        cause = law.map_parameters(torch.flatten)
        death = law.map_parameters(lambda p: p[:, self.death_outcome, None].expand_as(p).flatten())
        # The risk if nobody died: the exact bound of every risk, and the risk of death itself.
        alone = torch.stack([-torch.expm1(-law.cumulative_hazard(h)) for h in horizons_years], dim=-1)  # [n,K,T]
        later = horizons_years[horizons_years > 0].tolist()
        n_zero = len(horizons_years) - len(later)
        risk = torch.zeros_like(alone)
        if later:
            found = cumulative_incidence(cause, death, later).view(*alone.shape[:2], len(later))
            risk[..., n_zero:] = torch.minimum(found, alone[..., n_zero:])
        risk[:, self.death_outcome] = alone[:, self.death_outcome]
        return risk


@dataclass(frozen=True)
class ConstantHazards(CauseHazards):
    """h_k(u) = λ_k: the hazards of the interval up to the next event."""

    log_rate: Tensor  # log λ [...,K], per year
    death_outcome: int

    def log_hazard(self, u_years: Tensor) -> Tensor:
        """Return log λ_k, whatever the time."""
        shape = torch.broadcast_shapes(self.log_rate.shape, u_years.shape)  # type: ignore[no-untyped-call]
        return self.log_rate.expand(shape)

    def cumulative_hazard(self, u_years: Tensor) -> Tensor:
        """Return λ_k·u."""
        return _exp(self.log_rate) * u_years

    def after(self, elapsed_years: Tensor) -> Self:
        """Return the same law: a constant hazard has no memory."""
        return self

    def total_at_risk(self, u_years: Tensor, at_risk: Tensor) -> Tensor:
        """Return u·Σ_k λ_k over the causes at risk [...]: the rates are read once and kept once."""
        total: Tensor = _TotalRate.apply(self.log_rate, at_risk)  # type: ignore[no-untyped-call]
        return u_years * total

    def risk(self, horizons_years: Tensor) -> Tensor:
        """Return λ_k/(λ_k + λ_death)·(1 - exp(-(λ_k + λ_death)h)), and 1 - exp(-λ_death·h) for death, float64."""
        log_rate, horizons = self.log_rate.double(), horizons_years.double()
        log_death = log_rate[..., self.death_outcome, None]
        # Ratio and sum are formed from logarithms: no rate is so large or so small that inf/inf or 0/0 can arise.
        share = torch.sigmoid(log_rate - log_death)
        risk = share[..., None] * _happened_by(torch.logaddexp(log_rate, log_death), horizons)
        risk[..., self.death_outcome, :] = _happened_by(log_death[..., 0], horizons)
        return risk

    def at_log_time(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        """Return λ_k·u, twice."""
        cumulative = torch.exp(self.log_rate + log_u)
        return cumulative, cumulative

    def log_time_of(self, cumulative: float) -> Tensor:
        """Return log(cumulative/λ_k)."""
        return math.log(cumulative) - self.log_rate

    def slowest_power(self) -> Tensor:
        """Return 1."""
        return torch.ones_like(self.log_rate)

    def map_parameters(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply `function` to the rates."""
        return replace(self, log_rate=function(self.log_rate))


@dataclass(frozen=True)
class WeibullHazards(CauseHazards):
    """h_k(u) = (ρ_k/σ_k)(u/σ_k)^(ρ_k - 1), H_k(u) = (u/σ_k)^ρ_k.

    Held as the shape ρ and log H at `ANCHOR_YEARS`: η = ρ·log(anchor/σ). The two are nearly independent in the
    likelihood, where σ (thousands of years for a rare disease) and ρ are not.
    """

    log_anchor_hazard: Tensor  # η [...,K]
    log_shape: Tensor  # log ρ [...,K]
    death_outcome: int

    ANCHOR_YEARS = 5.0

    def log_hazard(self, u_years: Tensor) -> Tensor:
        """Return log h_k(u) = η + log ρ - log u + ρ·log(u/anchor)."""
        log_u = torch.log(u_years)
        return self.log_anchor_hazard + self.log_shape - log_u + self.log_shape.exp() * (log_u - _LOG_ANCHOR)

    def cumulative_hazard(self, u_years: Tensor) -> Tensor:
        """Return H_k(u) = exp(η + ρ·log(u/anchor)), masked on both sides at u = 0 for the sake of gradients."""
        positive = u_years > 0
        log_u = torch.log(torch.where(positive, u_years, 1.0))
        return torch.where(positive, _exp(self._log_cumulative(log_u)), 0.0)

    def after(self, elapsed_years: Tensor) -> "RemainingWeibullHazards":
        """Return the law of the time that remains after u₀ years [...,1] without the event."""
        elapsed = elapsed_years.to(self.log_shape).expand_as(self.log_shape)
        return RemainingWeibullHazards(self, elapsed)

    def at_log_time(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        """Return ρ·H_k and H_k."""
        cumulative = torch.exp(self._log_cumulative(log_u))
        return self.log_shape.exp() * cumulative, cumulative

    def log_time_of(self, cumulative: float) -> Tensor:
        """Return log u of (u/σ)^ρ = cumulative."""
        return _LOG_ANCHOR + (math.log(cumulative) - self.log_anchor_hazard) * torch.exp(-self.log_shape)

    def slowest_power(self) -> Tensor:
        """Return ρ, at most 1."""
        return self.log_shape.exp().clamp(max=1.0)

    def map_parameters(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply `function` to level and shape."""
        return replace(self, log_anchor_hazard=function(self.log_anchor_hazard), log_shape=function(self.log_shape))

    def _log_cumulative(self, log_u: Tensor) -> Tensor:
        return self.log_anchor_hazard + self.log_shape.exp() * (log_u - _LOG_ANCHOR)


_LOG_ANCHOR = math.log(WeibullHazards.ANCHOR_YEARS)


@dataclass(frozen=True)
class RemainingWeibullHazards(CauseHazards):
    """The Weibull law given that nothing has happened for u₀ years: h(u₀ + u), H(u₀ + u) - H(u₀).

    The difference is formed as H(u₀ + u)·(1 - (u₀/(u₀ + u))^ρ), which loses no digits however small u is beside u₀.
    """

    law: WeibullHazards
    elapsed_years: Tensor  # u₀ [...,K]

    @property
    def death_outcome(self) -> int:  # type: ignore[override]
        """Column of death among the outcomes."""
        return self.law.death_outcome

    def log_hazard(self, u_years: Tensor) -> Tensor:
        """Return log h_k(u₀ + u)."""
        return self.law.log_hazard(self.elapsed_years + u_years)

    def cumulative_hazard(self, u_years: Tensor) -> Tensor:
        """Return H_k(u₀ + u) - H_k(u₀)."""
        return self.law.cumulative_hazard(self.elapsed_years + u_years) * self._share_after_elapsed(u_years)

    def after(self, elapsed_years: Tensor) -> Self:
        """Return the law after a longer wait."""
        return replace(self, elapsed_years=self.elapsed_years + elapsed_years.to(self.elapsed_years))

    def at_log_time(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        """Return u·h_k(u₀ + u) = ρ·H_k(u₀ + u)·u/(u₀ + u), and H_k(u₀ + u) - H_k(u₀)."""
        u = log_u.exp()
        scaled_hazard, cumulative = self.law.at_log_time(torch.log(self.elapsed_years + u))
        return scaled_hazard * (u / (self.elapsed_years + u)), cumulative * self._share_after_elapsed(u)

    def log_time_of(self, cumulative: float) -> Tensor:
        """Return log u of H(u₀ + u) - H(u₀) = cumulative: u = u₀·((1 + cumulative/H(u₀))^(1/ρ) - 1)."""
        before = self.law.cumulative_hazard(self.elapsed_years)
        growth = torch.log1p(cumulative / before) * torch.exp(-self.law.log_shape)
        waited = torch.log(self.elapsed_years * torch.expm1(growth))
        return torch.where(before > 0, waited, self.law.log_time_of(cumulative))

    def slowest_power(self) -> Tensor:
        """Return ρ, at most 1: H rises as u up to about u₀, and as u^ρ later."""
        return self.law.slowest_power()

    def map_parameters(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply `function` to level, shape and elapsed time."""
        return replace(self, law=self.law.map_parameters(function), elapsed_years=function(self.elapsed_years))

    def _share_after_elapsed(self, u_years: Tensor) -> Tensor:
        """Return 1 - (u₀/(u₀ + u))^ρ, the part of H(u₀ + u) that was added after u₀."""
        waited = self.elapsed_years > 0
        log_ratio = torch.log1p(u_years / torch.where(waited, self.elapsed_years, 1.0))
        share = -torch.expm1(-self.law.log_shape.exp() * log_ratio)
        return torch.where(waited, share, 1.0)


@dataclass(frozen=True)
class MixedHazards(CauseHazards):
    """h_k(u) = λ_k + Weibull: a constant short-term part and a long-term part that rises or falls."""

    log_rate: Tensor  # log λ [...,K], per year
    weibull: WeibullHazards | RemainingWeibullHazards

    @property
    def death_outcome(self) -> int:  # type: ignore[override]
        """Column of death among the outcomes."""
        return self.weibull.death_outcome

    @property
    def constant(self) -> ConstantHazards:
        """The constant part, as a law of its own."""
        return ConstantHazards(self.log_rate, self.death_outcome)

    def log_hazard(self, u_years: Tensor) -> Tensor:
        """Return log(λ_k + h_k of the Weibull part)."""
        return torch.logaddexp(self.constant.log_hazard(u_years), self.weibull.log_hazard(u_years))

    def cumulative_hazard(self, u_years: Tensor) -> Tensor:
        """Return λ_k·u + H_k of the Weibull part."""
        return self.constant.cumulative_hazard(u_years) + self.weibull.cumulative_hazard(u_years)

    def after(self, elapsed_years: Tensor) -> Self:
        """Return the law of the time that remains: only the Weibull part has a memory."""
        return replace(self, weibull=self.weibull.after(elapsed_years))

    def at_log_time(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums over both parts."""
        parts = zip(self.constant.at_log_time(log_u), self.weibull.at_log_time(log_u), strict=True)
        hazard, cumulative = (constant + weibull for constant, weibull in parts)
        return hazard, cumulative

    def log_time_of(self, cumulative: float) -> Tensor:
        """Return the earlier of the two parts' times."""
        return torch.minimum(self.constant.log_time_of(cumulative), self.weibull.log_time_of(cumulative))

    def slowest_power(self) -> Tensor:
        """Return the Weibull part's: that of the constant part is 1."""
        return self.weibull.slowest_power()

    def map_parameters(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply `function` to the parameters of both parts."""
        return replace(self, log_rate=function(self.log_rate), weibull=self.weibull.map_parameters(function))


class _TotalRate(torch.autograd.Function):
    """Σ_k exp(log_rate_k) over the causes at risk [...,K] → [...].

    Written out because this is most of what a next_token loss costs: autograd's own form reads and writes the [N,K]
    numbers about twice as often and keeps two copies of them.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, log_rate: Tensor, at_risk: Tensor) -> Tensor:
        rates = _exp(log_rate).mul_(at_risk)
        ctx.save_for_backward(rates)
        return rates.sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (rates,) = ctx.saved_tensors
        return rates * gradient[..., None], None


def _exp(x: Tensor) -> Tensor:
    """Return exp(x), held below e^71 = 7e30 in float32: that means "at once", and sums over causes stay finite."""
    return x.clamp(max=_LARGEST_EXPONENT * math.log(torch.finfo(x.dtype).max)).exp_()


def _happened_by(log_rate: Tensor, horizons_years: Tensor) -> Tensor:
    """Return 1 - exp(-rate·h) [...,T]."""
    return -torch.expm1(-torch.exp((log_rate[..., None] + horizons_years.log()).clamp(max=700.0)))


def _as_rows(parameter: Tensor) -> Tensor:
    """Return [...,K] as [N,K]."""
    return parameter.reshape(-1, parameter.shape[-1])


def _chunks(parameter: Tensor) -> list[slice]:
    """Cut the rows of a law [N,K] so that a chunk holds about `_PAIRS_AT_ONCE` pairs."""
    n_rows, n_causes = parameter.shape
    size = max(1, _PAIRS_AT_ONCE // n_causes)
    return [slice(start, start + size) for start in range(0, max(n_rows, 1), size)]
