"""Sums over pairs of a case and a later person, by who has the higher score, without visiting the pairs.

Cases are numbered in order of time (i) and placed in order of score (c_i). A person comes after the first k cases and
has a higher score than the cases with c < r: "the first k cases with c ≥ r" is a corner of the i × c plane. Time is cut
into blocks, those into smaller blocks, down to single cases; within each block, a table of cumulative sums has a row
for each smaller block and a column for each case in order of score. A corner is one cell of a table at each level:
m cases and n people cost O((m FAN_OUT + n) log m), where visiting the pairs costs m n.

m cases, n people, L levels. This is a wavelet tree with many children: Ferragina, Manzini, Mäkinen, Navarro 2007, ACM
Trans Algorithms 3:20.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.evaluation.array_types import FloatArray, IntArray, sum_by_label

FAN_OUT = 32  # blocks a block is cut into; measured: 16 to 64 are equally fast


@dataclass(frozen=True)
class _Level:
    """Blocks of one size and the smaller ones they are cut into."""

    size: int  # cases in a block
    child_size: int
    n_children: int
    n_below: npt.NDArray[np.int32]  # [blocks × children, size + 1] cases of a child whose place in the block is < r
    cell_of_case: IntArray  # [m] block, child, place in the block, laid out as the table below

    @property
    def n_blocks(self) -> int:
        """Return how many blocks there are."""
        return len(self.n_below) // self.n_children

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of a table of sums: blocks, 0 to all children, places 0 to size."""
        return self.n_blocks, self.n_children + 1, self.size + 1


@dataclass(frozen=True)
class OrderedCases:
    """Cases in order of time with their places in the order of score, ready for sums."""

    n_cases: int
    levels: tuple[_Level, ...]


def order_cases(place: IntArray) -> OrderedCases:
    """Prepare sums over cases in order of time, given the place [m] of each in the order of score (a permutation)."""
    m = place.size
    size, child_size = m + 1, 1  # one more than there are: nobody stands past the end of the outermost block
    while child_size * FAN_OUT < m:
        child_size *= FAN_OUT
    levels = []
    case, local = np.arange(m), place
    while m:
        n_children = -(-size // child_size)
        block, child = case // size, case % size // child_size
        row = block * n_children + child
        n_blocks = -(-m // size)
        is_there = np.zeros((n_blocks * n_children, size + 1), dtype=np.int32)
        is_there[row, local + 1] = 1
        n_below = np.cumsum(is_there, axis=1, dtype=np.int32)
        cell = (block * (n_children + 1) + child) * (size + 1) + local
        levels.append(_Level(size, child_size, n_children, n_below, cell))
        if child_size == 1:
            break
        local = n_below[row, local].astype(np.int64)
        size, child_size = child_size, child_size // FAN_OUT
    return OrderedCases(m, tuple(levels))


def find_cells(cases: OrderedCases, k: IntArray, r: IntArray) -> list[IntArray]:
    """Return, level by level, the cell of the table that belongs to each person's k and r [n]: L arrays [n]."""
    cells = []
    for level in cases.levels:
        block = np.minimum(k // level.size, level.n_blocks - 1)
        child = k // level.child_size - block * (level.size // level.child_size)
        child = np.where(k < (block + 1) * level.size, child, 0)  # past the very last block nothing is added
        cells.append((block * (level.n_children + 1) + child) * (level.size + 1) + r)
        row = block * level.n_children + np.minimum(child, level.n_children - 1)
        r = level.n_below[row, r].astype(np.int64)
    return cells


def sum_over_earlier_cases(cases: OrderedCases, values: FloatArray, cells: list[IntArray]) -> FloatArray:
    """Return Σ of values [m] over each person's first k cases with place ≥ r: [n]."""
    total = np.zeros(cells[0].size if cells else 0)
    for level, cell in zip(cases.levels, cells, strict=True):
        table = np.zeros(level.shape)
        table.ravel()[level.cell_of_case + level.size + 1] = values  # one row on: sums of the children before
        table = np.cumsum(table, axis=1)
        total += np.take(np.cumsum(table[..., ::-1], axis=2)[..., ::-1].ravel(), cell)
    return total


def sum_over_later_people(cases: OrderedCases, values: FloatArray, cells: list[IntArray]) -> FloatArray:
    """Return, for each case, Σ of values [n] over people whose first k cases with place ≥ r include it: [m].

    The same pairs as `sum_over_earlier_cases`, summed the other way.
    """
    total = np.zeros(cases.n_cases)
    for level, cell in zip(cases.levels, cells, strict=True):
        table = sum_by_label(cell, values, int(np.prod(level.shape))).reshape(level.shape)
        table = np.cumsum(table[:, ::-1], axis=1)[:, ::-1]
        total += np.take(np.cumsum(table, axis=2).ravel(), level.cell_of_case + level.size + 1)
    return total
