"""Symmetric 3x3 matrices, written out: small enough to beat any library's call.

>>> product(inverted(Symmetric(2.0, 0.0, 0.0, 4.0, 0.0, 5.0)), (2.0, 4.0, 5.0))
(1.0, 1.0, 1.0)
"""

from typing import Final, NamedTuple

Vector = tuple[float, float, float]

# A determinant below this share of the diagonal's product is nothing but rounding.
_SINGULAR: Final = 1e-14


class Symmetric(NamedTuple):
    """The upper half of the matrix, row by row."""

    a00: float = 0.0
    a01: float = 0.0
    a02: float = 0.0
    a11: float = 0.0
    a12: float = 0.0
    a22: float = 0.0


def product(matrix: Symmetric, vector: Vector) -> Vector:
    """Return *matrix* times *vector*."""
    a00, a01, a02, a11, a12, a22 = matrix
    x0, x1, x2 = vector
    return (
        a00 * x0 + a01 * x1 + a02 * x2,
        a01 * x0 + a11 * x1 + a12 * x2,
        a02 * x0 + a12 * x1 + a22 * x2,
    )


def inverted(matrix: Symmetric) -> Symmetric:
    """Return the inverse of a positive definite matrix; zeros if it is not one."""
    a00, a01, a02, a11, a12, a22 = matrix
    c00 = a11 * a22 - a12 * a12
    c01 = a02 * a12 - a01 * a22
    c02 = a01 * a12 - a02 * a11
    determinant = a00 * c00 + a01 * c01 + a02 * c02
    if determinant <= _SINGULAR * a00 * a11 * a22:
        return Symmetric()
    return Symmetric(
        c00 / determinant,
        c01 / determinant,
        c02 / determinant,
        (a00 * a22 - a02 * a02) / determinant,
        (a01 * a02 - a00 * a12) / determinant,
        (a00 * a11 - a01 * a01) / determinant,
    )


def non_negative(matrix: Symmetric, moments: Vector) -> Vector:
    """Return the x >= 0 that minimises ``x·Mx/2 - b·x``, for use where some x < 0.

    The minimum lies where one or two of the three are zero and the rest solves its own
    equations. Of all such points that are not negative, it is the one with the largest
    ``b·x``: there the objective is just ``-b·x/2``.
    """
    a00, a01, a02, a11, a12, a22 = matrix
    b0, b1, b2 = moments
    x0, x1 = _pair(a00, a01, a11, b0, b1)
    y0, y2 = _pair(a00, a02, a22, b0, b2)
    z1, z2 = _pair(a11, a12, a22, b1, b2)
    candidates: tuple[Vector, ...] = (
        (x0, x1, 0.0),
        (y0, 0.0, y2),
        (0.0, z1, z2),
        (_single(a00, b0), 0.0, 0.0),
        (0.0, _single(a11, b1), 0.0),
        (0.0, 0.0, _single(a22, b2)),
    )
    return max(candidates, key=lambda x: x[0] * b0 + x[1] * b1 + x[2] * b2)


def _pair(
    a00: float, a01: float, a11: float, b0: float, b1: float
) -> tuple[float, float]:
    """Solve two equations; return zeros where a solution is negative or undefined."""
    determinant = a00 * a11 - a01 * a01
    if determinant <= _SINGULAR * a00 * a11:
        return 0.0, 0.0
    x0 = (a11 * b0 - a01 * b1) / determinant
    x1 = (a00 * b1 - a01 * b0) / determinant
    return (x0, x1) if x0 >= 0 and x1 >= 0 else (0.0, 0.0)


def _single(a: float, b: float) -> float:
    return b / a if a > 0 and b > 0 else 0.0
