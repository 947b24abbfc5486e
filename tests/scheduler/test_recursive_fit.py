"""The fit: sensible from the first observation on, robust, and quick to follow."""

import math
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.scheduler import InvalidSetting
from kvalet.scheduler.recursive_fit import FitRecord, RecursiveFit
from kvalet.scheduler.symmetric import Symmetric, inverted, non_negative, product

FLOORS = (0.0, 0.0, 0.0)
SIZES = (1e6, 5e6, 2e7, 1e8)
PROBE = 5e7


def line(nbytes: float) -> float:
    """Return what a copy costs on the link that most tests are about."""
    return 0.002 + nbytes / 2e9


def copy(nbytes: float) -> tuple[float, float, float]:
    """Return a copy as an input of the fit."""
    return nbytes, 0.0, 1.0


class Link:
    """Copies of random sizes over a noisy link, and the fit that watches them."""

    def __init__(self, seed: int, noise: float) -> None:
        self.random = Random(seed)
        self.noise = noise
        self.fit = RecursiveFit(floors=FLOORS)

    def copies(self, count: int, cost: Callable[[float], float] = line) -> None:
        """Observe so many copies."""
        for _ in range(count):
            nbytes = self.random.choice(SIZES)
            noise = math.exp(self.random.gauss(0.0, self.noise))
            self.fit.observe(copy(nbytes), cost(nbytes) * noise)

    def error(self, cost: Callable[[float], float] = line) -> float:
        """Return the logarithm of expected to true cost at the probe."""
        expected = self.fit.cost(copy(PROBE))
        assert expected
        return math.log(expected / cost(PROBE))


# ---- few observations ----------------------------------------------------------------


def test_nothing_is_known_at_first() -> None:
    """No cost, no confidence, no record."""
    fit = RecursiveFit(floors=FLOORS)
    assert fit.cost(copy(1e6)) is None
    assert fit.confidence(copy(1e6)) == 0.0
    assert fit.record() is None


def test_one_observation_means_proportional_cost() -> None:
    """Ten times the bytes take ten times as long, with less confidence."""
    fit = RecursiveFit(floors=FLOORS)
    fit.observe(copy(1e6), 0.01)
    assert fit.cost(copy(1e6)) == pytest.approx(0.01)
    assert fit.cost(copy(1e7)) == pytest.approx(0.1)
    assert 0.2 < fit.confidence(copy(1e6)) < 0.6
    assert fit.confidence(copy(1e7)) < fit.confidence(copy(1e6))


@given(
    first=st.floats(1e3, 1e9),
    stretch=st.floats(1.001, 1.2),
    noise=st.floats(-0.2, 0.2),
)
def test_two_sizes_alike_are_not_extrapolated_wildly(
    first: float, stretch: float, noise: float
) -> None:
    """However the second comes out, a thousandfold size costs its share, about."""
    fit = RecursiveFit(floors=FLOORS)
    fit.observe(copy(first), 0.01)
    fit.observe(copy(first * stretch), 0.01 * stretch * math.exp(noise))
    assert fit.cost(copy(1000 * first)) == pytest.approx(10.0, rel=0.5)


def test_one_size_for_ever_stays_proportional() -> None:
    """Hundreds of copies of one size say nothing of a setup cost, and don't pretend."""
    fit, random = RecursiveFit(floors=FLOORS), Random(1)
    for _ in range(500):
        fit.observe(copy(1e7), line(1e7) * math.exp(random.gauss(0, 0.05)))
    assert fit.cost(copy(1e9)) == pytest.approx(100 * line(1e7), rel=0.1)
    assert fit.confidence(copy(1e7)) > 0.99
    assert fit.confidence(copy(1e9)) < 0.5


def test_two_sizes_tell_setup_and_rate_apart() -> None:
    """Without noise, ten observations of each are enough for three per cent."""
    fit = RecursiveFit(floors=FLOORS)
    for _ in range(10):
        for nbytes in (1e6, 1e8):
            fit.observe(copy(nbytes), line(nbytes))
    for nbytes in (1e5, 1e6, 1e7, 1e9):
        assert fit.cost(copy(nbytes)) == pytest.approx(line(nbytes), rel=0.03)


# ---- noise ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_noise_averages_out(seed: int) -> None:
    """After eighty observations with a fifth of noise, the error is below a fifth."""
    link = Link(seed, noise=0.2)
    link.copies(80)
    assert abs(link.error()) < 0.18
    assert 0.1 < link.fit.spread < 0.35


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("outlier", [0.01, 30.0])
def test_outliers_hardly_matter(seed: int, outlier: float) -> None:
    """One copy in twelve takes thirty times as long, or no time: within a sixth."""
    link = Link(seed, noise=0.05)
    for _ in range(10):
        link.copies(11)
        link.copies(1, lambda nbytes: outlier * line(nbytes))
        assert abs(link.error()) < 0.17


def test_a_bad_first_observation_is_overcome() -> None:
    """Five more, and it is forgotten."""
    link = Link(0, noise=0.05)
    link.copies(1, lambda nbytes: 20 * line(nbytes))
    link.copies(5)
    assert abs(link.error()) < 0.2


def test_old_sizes_are_not_forgotten() -> None:
    """A thousand small copies leave the cost of a large one as it was."""
    link = Link(3, noise=0.03)
    link.copies(40)
    for _ in range(1000):
        noise = math.exp(link.random.gauss(0, 0.03))
        link.fit.observe(copy(1e6), line(1e6) * noise)
    large = link.fit.cost(copy(1e9))
    assert large == pytest.approx(line(1e9), rel=0.1)


# ---- changes -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("factor", [0.2, 0.5, 2.0, 5.0])
def test_a_change_of_everything_is_followed(seed: int, factor: float) -> None:
    """Six observations after the link changed, the error is below a fifth."""
    link = Link(seed, noise=0.05)
    link.copies(60)

    def changed(nbytes: float) -> float:
        return factor * line(nbytes)

    link.copies(6, changed)
    assert abs(link.error(changed)) < 0.2


@pytest.mark.parametrize("seed", range(10))
def test_a_change_of_the_rate_alone_is_followed(seed: int) -> None:
    """The setup stays, the rate drops to a fifth: eight observations, a third."""
    link = Link(seed, noise=0.05)
    link.copies(60)

    def slower(nbytes: float) -> float:
        return 0.002 + nbytes / 0.4e9

    link.copies(8, slower)
    assert abs(link.error(slower)) < 0.33
    link.copies(20, slower)
    assert abs(link.error(slower)) < 0.15


def test_a_change_back_is_followed() -> None:
    """Slow for a while, then as before: each is noticed."""
    link = Link(7, noise=0.05)
    link.copies(60)
    link.copies(20, lambda nbytes: 5 * line(nbytes))
    link.copies(6)
    assert abs(link.error()) < 0.2


# ---- always --------------------------------------------------------------------------

amounts = st.just(0.0) | st.floats(1.0, 1e12)
observations = st.lists(
    st.tuples(
        st.floats(1.0, 1e12),
        amounts,
        amounts,
        st.floats(1e-9, 1e6),
    ),
    min_size=1,
    max_size=40,
)


@given(observations)
def test_costs_are_never_negative(
    seen: list[tuple[float, float, float, float]],
) -> None:
    """Coefficients are finite and not below zero, confidence is between 0 and 1."""
    fit = RecursiveFit(floors=(0.0, 100.0, 0.0))
    for x0, x1, x2, measured in seen:
        fit.observe((x0, x1, x2), measured)
        assert all(0.0 <= k < math.inf for k in fit.coefficients)
        assert any(fit.coefficients)
        assert 0.0 <= fit.confidence((x0, x1, x2)) <= 1.0


@given(observations, st.integers(0, 39))
def test_a_record_goes_on_where_it_ended(
    seen: list[tuple[float, float, float, float]], cut: int
) -> None:
    """Through JSON and back, a fit has the same coefficients, spread and confidence."""
    fit = RecursiveFit(floors=FLOORS)
    for x0, x1, x2, measured in seen[: cut + 1]:
        fit.observe((x0, x1, x2), measured)
    record = fit.record()
    assert record is not None
    content = msgspec.json.encode(record)
    again = RecursiveFit.from_record(
        msgspec.json.decode(content, type=FitRecord), floors=FLOORS
    )
    assert again.coefficients == fit.coefficients
    assert (again.spread, again.observations) == (fit.spread, fit.observations)
    assert again.record() == record


@pytest.mark.parametrize("measured", [0.0, -1.0, math.inf, math.nan])
def test_what_cannot_be_teaches_nothing(measured: float) -> None:
    """A duration that is not above zero and finite is passed over."""
    fit = RecursiveFit(floors=FLOORS)
    fit.observe(copy(1e6), measured)
    assert fit.record() is None


@pytest.mark.parametrize(
    "change",
    [
        {"spread": math.inf},
        {"moments": (0.0, 0.0, 0.0)},
        {"moments": (math.nan, 0.0, 0.0)},
        {"moments": (-1.0, 0.0, -1.0)},
    ],
)
def test_an_impossible_record_is_refused(change: dict[str, object]) -> None:
    """Not finite, or with no cost in it: one sentence."""
    fit = RecursiveFit(floors=FLOORS)
    fit.observe(copy(1e6), 0.01)
    record = fit.record()
    assert record is not None
    with pytest.raises(InvalidSetting, match="fitted cost"):
        RecursiveFit.from_record(
            msgspec.structs.replace(record, **change), floors=FLOORS
        )


# ---- the matrices --------------------------------------------------------------------

vectors = st.tuples(*[st.floats(-10, 10)] * 3)


def squared(rows: list[tuple[float, float, float]], ridge: float) -> Symmetric:
    """Return the sum of the rows' squares, and *ridge* on the diagonal."""
    sums = [
        sum(row[i] * row[j] for row in rows) + (ridge if i == j else 0.0)
        for i in range(3)
        for j in range(i, 3)
    ]
    return Symmetric(*sums)


@given(st.lists(vectors, max_size=5), vectors)
def test_the_inverse_undoes_the_product(
    rows: list[tuple[float, float, float]], x: tuple[float, float, float]
) -> None:
    """Of a positive definite matrix."""
    matrix = squared(rows, 0.1)
    there = product(inverted(matrix), product(matrix, x))
    assert there == pytest.approx(x, abs=1e-3)


@given(st.lists(vectors, min_size=1, max_size=5), vectors)
def test_the_non_negative_minimum(
    rows: list[tuple[float, float, float]], moments: tuple[float, float, float]
) -> None:
    """No step from it, up or, where it can, down, makes the objective smaller."""
    matrix = squared(rows, 0.1)
    free = product(inverted(matrix), moments)
    if min(free) >= 0:
        return
    x = non_negative(matrix, moments)
    slope = [g - b for g, b in zip(product(matrix, x), moments, strict=True)]
    for place, inclination in zip(x, slope, strict=True):
        assert place >= 0
        assert inclination >= -1e-6
        assert place == 0 or abs(inclination) < 1e-6
