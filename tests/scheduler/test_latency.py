"""The latency model: right on cases done by hand, sane on all others, and small."""

import gc
import inspect
import math
import random
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvalet.scheduler import InvalidSetting
from kvalet.scheduler.latency import LatencyModel, OpenCall, ToolCounts
from kvalet.scheduler.sketch import EDGES_S, Sketch
from kvalet.scheduler.survival import Curve, estimate, lindy

Seen = tuple[str, str, float, str]
"""Tool, class, seconds, status."""

seconds = st.one_of(st.floats(0.0, 2e5), st.floats(1e-3, 10.0))
statuses = st.sampled_from(["ok", "error", "cancelled"])
limits_s = st.sampled_from([10.0, 30.0, 120.0, 600.0])
calls = st.one_of(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), seconds, statuses),
    st.tuples(
        st.sampled_from("ab"), st.sampled_from("xy"), limits_s, st.just("timeout")
    ),
)
histories = st.lists(calls, max_size=40)
ages = st.floats(0.0, 1e6)


def learn(model: LatencyModel, seen: Iterable[Seen]) -> LatencyModel:
    for tool, tool_class, took_s, status in seen:
        model.observe(tool=tool, tool_class=tool_class, seconds=took_s, status=status)
    return model


def of_one(*took_s: float, status: str = "ok") -> LatencyModel:
    """A model that saw one tool, "t" of class "c"."""
    return learn(LatencyModel(), (("t", "c", one_s, status) for one_s in took_s))


def product_limit(seen: Iterable[tuple[float, str]]) -> Curve:
    """Kaplan and Meier's estimate, with next to no prior."""
    sketch = Sketch()
    for took_s, status in seen:
        sketch.observe(took_s, status)
    return estimate(sketch, lindy(1.0), prior_calls=1e-9, prior_survivors=0.0)


# ---- by hand -------------------------------------------------------------------------


def test_without_losses_the_curve_is_the_share_that_lasts_longer() -> None:
    """Four calls of 1.1, 3, 3 and 9 s: S falls to 3/4, 1/4, 0."""
    curve = product_limit([(1.1, "ok"), (3.0, "error"), (3.0, "ok"), (9.0, "ok")])
    assert curve.at(0.9) == pytest.approx(1.0)
    assert curve.at(2.0) == pytest.approx(0.75)
    assert curve.at(5.0) == pytest.approx(0.25)
    assert curve.at(20.0) == pytest.approx(0.0, abs=1e-6)


def test_with_losses_it_is_the_product_limit() -> None:
    """A call lost at 2 s leaves the share of the remaining two: 3/4, then 3/8."""
    curve = product_limit(
        [(1.1, "ok"), (2.2, "cancelled"), (4.4, "ok"), (9.0, "cancelled")]
    )
    assert curve.at(2.0) == pytest.approx(3 / 4)
    assert curve.at(3.0) == pytest.approx(3 / 4)
    assert curve.at(6.0) == pytest.approx(3 / 4 * 1 / 2)


def test_residual_life_is_the_mean_of_what_is_left() -> None:
    """Half of the calls take 1 s and half 20 s; past 5 s only the latter are left."""
    model = of_one(*[1.05, 20.0] * 400)
    assert model.remaining_s("t", "c", 0.0) == pytest.approx(10.5, rel=0.15)
    assert model.remaining_s("t", "c", 5.0) == pytest.approx(15.0, rel=0.2)


def test_nothing_known_means_as_long_again() -> None:
    """With no observation, expected remaining = elapsed, with a floor of about 1 s."""
    model = LatencyModel()
    assert model.remaining_s("t", "c", 0.0) == pytest.approx(1.0, rel=0.05)
    for elapsed_s in (10.0, 300.0, 5e4):
        remaining_s = model.remaining_s("t", "c", elapsed_s)
        assert remaining_s == pytest.approx(elapsed_s, rel=0.15)
    assert model.remaining_s("t", "c", 1e7) == 1e7
    assert model.survival("t", "c", 1e7, 1e7) == pytest.approx(1 / 4)
    assert model.quantile_s("t", "c", 3 / 4, 1e7) == pytest.approx(1e7)


def test_the_first_observation_tells() -> None:
    """One call of 40 s makes the next one expected to take longer, and known is known.

    Another tool of the class learns from it as well, and less.
    """
    new, seen = LatencyModel(), of_one(40.0)
    own_s = seen.remaining_s("t", "c", 0.0)
    assert own_s > seen.remaining_s("other", "c", 0.0) > new.remaining_s("t", "c", 0.0)
    assert seen.quantile_s("t", "c", 0.9) > new.quantile_s("t", "c", 0.9)


def test_beyond_what_was_seen_it_takes_as_long_again() -> None:
    """A call far older than all that were seen is expected to last its age again."""
    model = of_one(*[0.1] * 500)
    assert model.remaining_s("t", "c", 0.0) < 0.3
    assert model.remaining_s("t", "c", 1000.0) == pytest.approx(1000.0, rel=0.1)


# ---- time limits ---------------------------------------------------------------------


def test_a_limit_comes_closer() -> None:
    """Just before a time limit, what remains is the distance to it."""
    model = of_one(*[0.5] * 300)
    learn(model, [("t", "c", 120.0 + late / 50, "timeout") for late in range(20)])
    for elapsed_s in (60.0, 100.0, 119.0):
        remaining_s = model.remaining_s("t", "c", elapsed_s)
        assert remaining_s == pytest.approx(120.2 - elapsed_s, rel=0.2, abs=0.6)
    assert model.survival("t", "c", 60.0, 59.0) > 0.8
    assert model.survival("t", "c", 60.0, 61.0) < 0.2
    assert model.quantile_s("t", "c", 0.5, 60.0) == pytest.approx(60.3, abs=0.2)
    assert model.remaining_s("t", "c", 130.0) > 20.0


def test_a_limit_is_known_to_the_class() -> None:
    """A tool that never timed out may hit the limit that others of its class hit."""
    model = learn(LatencyModel(), [("t", "c", 120.0, "timeout")] * 30)
    learn(model, [("new", "c", 0.5, "ok")] * 3)
    assert model.remaining_s("new", "c", 110.0) == pytest.approx(10.0, rel=0.2)


def test_many_limits_lose_no_call() -> None:
    """Beyond four limits, the lightest ones count as ordinary ends at their time."""
    limits = [2.0, 5.0, 10.0, 30.0, 60.0, 300.0]
    curve = product_limit([(limit_s, "timeout") for limit_s in limits] * 3)
    for ended, limit_s in enumerate(limits, start=1):
        assert curve.at(limit_s * 1.3) == pytest.approx(1 - ended / 6, abs=1e-3)


@pytest.mark.parametrize("limit_s", [1.0, 100.0, 3e5])
def test_a_limit_may_fall_on_an_edge(limit_s: float) -> None:
    """A limit where a bin begins, or beyond all bins, is one like any other."""
    curve = product_limit([(limit_s, "timeout")] * 8 + [(1e-4, "ok")] * 8)
    assert curve.at(min(limit_s, EDGES_S[-1]) * 0.75) == pytest.approx(0.5, abs=1e-3)
    assert curve.at(min(limit_s, EDGES_S[-1]) * 1.01) == pytest.approx(0, abs=1e-3)


# ---- what is learned from whom -------------------------------------------------------


def test_own_then_class_then_all() -> None:
    """An unknown tool is taken for one of its class, an unknown class for any tool."""
    seen = [("read", "fast", 0.02, "ok"), ("agent", "slow", 90.0, "ok")] * 100
    model = learn(LatencyModel(), seen)
    assert model.quantile_s("new", "fast", 0.5) < 0.1
    assert model.quantile_s("new", "slow", 0.5) > 50.0
    assert 5.0 < model.remaining_s("new", "new", 0.0) < 80.0


def test_people_are_no_tools() -> None:
    """User waits change nothing that is said of tools, and the other way round."""
    tools = [("t", "c", 0.5, "ok")] * 30
    people = [("user", "user", 900.0, "ok")] * 30
    only_tools, only_people = (
        learn(LatencyModel(), tools),
        learn(LatencyModel(), people),
    )
    both = learn(LatencyModel(), [*tools, *people])
    for name in (("t", "c"), ("new", "c"), ("new", "new")):
        assert both.remaining_s(*name, 1.0) == only_tools.remaining_s(*name, 1.0)
    for name in (("user", "user"), ("guest", "user")):
        assert both.remaining_s(*name, 1.0) == only_people.remaining_s(*name, 1.0)
    assert LatencyModel().quantile_s("user", "user", 0.5) == pytest.approx(83, rel=0.1)


def test_a_change_of_pace_is_followed() -> None:
    """After a thousand fast calls, thirty slow ones are believed."""
    model = of_one(*[0.2] * 1000)
    learn(model, [("t", "c", 20.0, "ok")] * 30)
    assert model.quantile_s("t", "c", 0.5) == pytest.approx(20.0, rel=0.2)


def test_old_calls_fade() -> None:
    """Without any alarm, calls weigh half after the half-life."""
    model = LatencyModel(half_life_calls=100.0)
    chance = random.Random(3)
    for count in range(1200):
        slow = chance.random() < (0.3 if count < 600 else 0.1)
        learn(model, [("t", "c", 20.0 if slow else 0.2, "ok")])
    assert model.survival("t", "c", 0.0, 5.0) == pytest.approx(0.1, abs=0.06)


def test_counts_are_those_of_all_classes() -> None:
    """Errors, timeouts and cancellations of a tool are counted by its name."""
    seen = [("Bash", "test", 1.0, "error"), ("Bash", "git", 120.0, "timeout")]
    seen += [("Bash", "git", 1.0, "ok"), ("Bash", "git", 1.0, "cancelled")]
    model = learn(LatencyModel(), [*seen, ("Read", "read", 1.0, "error")])
    counts = ToolCounts(count=4, errors=1, timeouts=1, cancelled=1)
    assert model.counts("Bash") == counts
    assert model.counts("new").count == 0


# ---- parallel calls ------------------------------------------------------------------


def test_the_last_of_parallel_calls_counts() -> None:
    """The expected end of the last call is that of draws of all of them."""
    chance = random.Random(5)
    model = LatencyModel(half_life_calls=None)
    names, scales = ("a", "b", "c"), (0.0, 0.5, 2.0)
    for name, scale in zip(names, scales, strict=True):
        drawn = [chance.lognormvariate(scale, 1.0) for _ in range(3000)]
        learn(model, [(name, name, one_s, "ok") for one_s in drawn])
    open_calls = [OpenCall(tool=n, tool_class=n, elapsed_s=0.0) for n in names]
    draws = [
        max(chance.lognormvariate(scale, 1.0) for scale in scales)
        for _ in range(100_000)
    ]
    mean_s = sum(draws) / len(draws)
    assert model.joint_remaining_s(open_calls) == pytest.approx(mean_s, rel=0.06)
    later = sum(draw > 10.0 for draw in draws) / len(draws)
    assert model.joint_survival(open_calls, 10.0) == pytest.approx(later, abs=0.03)


def test_no_call_and_one_call() -> None:
    """Nothing to wait for takes no time, and one call what it takes alone."""
    model = of_one(3.0, 40.0)
    one = OpenCall(tool="t", tool_class="c", elapsed_s=2.0)
    assert model.joint_remaining_s([]) == model.joint_survival([], 1.0) == 0.0
    assert model.joint_remaining_s([one]) == model.remaining_s("t", "c", 2.0)
    assert model.joint_survival([one], 5.0) == pytest.approx(
        model.survival("t", "c", 2.0, 5.0)
    )


@given(histories, st.lists(st.tuples(st.sampled_from("abc"), ages), min_size=1))
def test_the_last_call_is_no_earlier_than_any_and_no_later_than_all(
    seen: list[Seen], opened: list[tuple[str, float]]
) -> None:
    """The joint wait lies between the longest and the sum, as chances do."""
    model = learn(LatencyModel(), seen)
    waits = [OpenCall(tool=tool, tool_class="x", elapsed_s=age) for tool, age in opened]
    means = [model.remaining_s(tool, "x", age) for tool, age in opened]
    joint_s = model.joint_remaining_s(waits)
    assert max(means) <= joint_s * 1.000001 and joint_s <= sum(means) * 1.000001
    alive = [model.survival(tool, "x", age, 7.0) for tool, age in opened]
    joint = model.joint_survival(waits, 7.0)
    assert max(alive) - 1e-9 <= joint <= min(1.0, sum(alive)) + 1e-9


# ---- for any history -----------------------------------------------------------------


@given(histories, ages, st.lists(st.floats(0.0, 1e6), min_size=2, max_size=8))
def test_survival_falls_from_one(
    seen: list[Seen], elapsed_s: float, more: list[float]
) -> None:
    """Chances lie in [0, 1] and never rise with time."""
    model = learn(LatencyModel(), seen)
    for name in (("a", "x"), ("new", "x"), ("new", "new"), ("user", "user")):
        chances = [model.survival(*name, elapsed_s, more_s) for more_s in sorted(more)]
        assert all(0.0 <= chance <= 1.0 for chance in chances)
        assert all(later <= sooner for sooner, later in pairwise(chances))
        assert model.survival(*name, elapsed_s, 0.0) == 1.0


@given(histories, ages)
def test_what_remains_is_finite(seen: list[Seen], elapsed_s: float) -> None:
    """Whatever was seen, and however old the call, the answer is a time."""
    model = learn(LatencyModel(), seen)
    for name in (("a", "x"), ("new", "x"), ("new", "new"), ("user", "user")):
        remaining_s = model.remaining_s(*name, elapsed_s)
        assert 0.0 <= remaining_s < math.inf
        for share in (0.0, 0.5, 0.999):
            assert 0.0 <= model.quantile_s(*name, share, elapsed_s) < math.inf


@given(histories, st.floats(0.0, 1e4), st.floats(0.01, 0.99))
def test_quantiles_invert_survival(
    seen: list[Seen], elapsed_s: float, share: float
) -> None:
    """Just after the quantile at most the rest survives, and just before at least."""
    model = learn(LatencyModel(), seen)
    more_s = model.quantile_s("a", "x", share, elapsed_s)
    slack_s = 1e-4 * (elapsed_s + more_s) + 1e-6
    assert model.survival("a", "x", elapsed_s, more_s + slack_s) <= 1 - share + 1e-3
    if more_s > slack_s:
        assert model.survival("a", "x", elapsed_s, more_s - slack_s) >= 1 - share - 1e-3


@given(st.lists(st.tuples(seconds, statuses), max_size=30), seconds, ages)
def test_a_cancelled_call_makes_longer(
    seen: list[tuple[float, str]], took_s: float, elapsed_s: float
) -> None:
    """A cancelled call lengthens the estimate, and more than one that ended then."""
    curves = dict[str, Curve]()
    for more in ("", "ok", "cancelled"):
        sketch = Sketch()
        for one_s, status in [*seen, *[(took_s, more)] * bool(more)]:
            sketch.observe(one_s, status)
        curves[more] = estimate(
            sketch, lindy(1.0), prior_calls=4.0, prior_survivors=1.0
        )
    for other in ("", "ok"):
        shorter_s = curves[other].remaining_s(elapsed_s)
        assert curves["cancelled"].remaining_s(elapsed_s) >= shorter_s * 0.9999


# ---- many models, and bytes ----------------------------------------------------------


def content(model: LatencyModel) -> Any:
    """What was learned, whatever the order."""
    record = msgspec.msgpack.decode(model.encode(), strict=False)
    for name in ("tools", "classes"):
        kept = record["levels"][name]
        kept.sort(key=itemgetter("tool", "tool_class"))
    for one in [*record["levels"]["tools"], *record["levels"]["classes"]]:
        one["sketch"]["limits"].sort()
    record["levels"]["all_tools"]["limits"].sort()
    return record


@given(histories, histories)
def test_merging_is_learning_both(one: list[Seen], other: list[Seen]) -> None:
    """Where nothing fades, a merged model knows what one that saw all would."""
    merged = learn(LatencyModel(half_life_calls=None), one)
    merged.merge(learn(LatencyModel(half_life_calls=None), other))
    assert content(merged) == content(
        learn(LatencyModel(half_life_calls=None), [*one, *other])
    )


def test_merging_keeps_recent_weight() -> None:
    """What fades is merged at today's weight, and asked anew."""
    one, other = of_one(*[1.0] * 500), of_one(*[30.0] * 500)
    assert one.remaining_s("t", "c", 0.0) < 2.0
    one.merge(other)
    assert one.survival("t", "c", 0.0, 5.0) == pytest.approx(0.5, abs=0.05)
    assert one.counts("t").count == 1000


@given(histories, ages)
def test_a_decoded_model_is_the_same(seen: list[Seen], elapsed_s: float) -> None:
    """Bytes in, bytes out; and what was decoded answers and learns alike."""
    model = learn(LatencyModel(half_life_calls=50.0), seen)
    twin = LatencyModel.decode(model.encode())
    assert twin.encode() == model.encode()
    for name in (("a", "x"), ("new", "y"), ("new", "new")):
        assert twin.remaining_s(*name, elapsed_s) == model.remaining_s(*name, elapsed_s)
    again = [("a", "x", 3.0, "ok")]
    assert learn(twin, again).encode() == learn(model, again).encode()


def _changed(change: Callable[[Any], None]) -> bytes:
    record = msgspec.msgpack.decode(of_one(1.0).encode(), strict=False)
    change(record)
    return msgspec.msgpack.encode(record)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "these 0 bytes are no latency model"),
        (b"\x00junk", "these 5 bytes are no latency model"),
        (_changed(lambda r: r.update(schema="kvalet.latency/9")), "'kvalet.latency/9'"),
        (_changed(lambda r: r.update(most_tools=0)), "no latency model"),
        (_changed(lambda r: r.update(half_life_calls=math.inf)), "half_life_calls"),
        (_changed(lambda r: r["levels"].update(more=1)), "no latency model"),
        (
            _changed(lambda r: r["levels"]["all_tools"]["ended"].update({99: 1.0})),
            "there is no bin 99, only 0 to 80",
        ),
        (
            _changed(lambda r: r["levels"]["all_tools"].update(drift=math.nan)),
            "a weight or time of nan is not possible",
        ),
        (
            _changed(lambda r: r["levels"]["all_tools"].update(unit=1e300)),
            "a weight or time of 1e\\+300 is not possible",
        ),
    ],
)
def test_what_is_no_model_is_refused(data: bytes, sentence: str) -> None:
    """Junk, another version and impossible figures are named, and nothing is built."""
    with pytest.raises(InvalidSetting, match=sentence):
        LatencyModel.decode(data)


def test_what_makes_no_sense_is_named() -> None:
    """Settings, times, statuses and shares that cannot be are refused by value."""
    with pytest.raises(InvalidSetting, match=r"at least 1, or None, not 0\.5"):
        LatencyModel(half_life_calls=0.5)
    with pytest.raises(InvalidSetting, match="most_tools must be at least 1, not 0"):
        LatencyModel(most_tools=0)
    model = LatencyModel()
    for impossible_s in (-1.0, math.inf, math.nan):
        with pytest.raises(InvalidSetting, match=f"cannot take {impossible_s} seconds"):
            learn(model, [("t", "c", impossible_s, "ok")])
    with pytest.raises(InvalidSetting, match="a call cannot end as 'open'"):
        learn(model, [("t", "c", 1.0, "open")])
    with pytest.raises(InvalidSetting, match=r"below 1, not 1\.0"):
        model.quantile_s("t", "c", 1.0)
    assert model.counts("t").count == 0


# ---- size ----------------------------------------------------------------------------


def history(tool: str, tool_class: str, count: int, seed: int) -> Iterable[Seen]:
    """Calls of all sorts: every bin, every status, more limits than are kept."""
    chance = random.Random(seed)
    for _ in range(count):
        status = chance.choices(["ok", "timeout", "cancelled"], [8, 1, 1])[0]
        limit_s = chance.choice([10.0, 30.0, 60.0, 120.0, 300.0, 600.0])
        drawn_s = chance.lognormvariate(0.0, 4.0)
        yield tool, tool_class, limit_s if status == "timeout" else drawn_s, status


def bytes_each(tools: int, calls_each: int) -> float:
    """Return what a model grows by per tool that it learns and is asked about."""
    # Whatever watches the lines, as coverage does, has then seen them all: its own
    # memory is none of the model's.
    learn_and_ask(LatencyModel(), "unmeasured", calls_each)
    tracemalloc.start()
    try:
        model = LatencyModel()
        learn_and_ask(model, "first", 300)
        before = allocated_by_the_scheduler()
        for number in range(tools):
            learn_and_ask(model, f"tool {number}", calls_each)
        return (allocated_by_the_scheduler() - before) / tools
    finally:
        tracemalloc.stop()


def allocated_by_the_scheduler() -> int:
    """Return the bytes alive that its own lines have allocated since the start."""
    gc.collect()
    folder = str(Path(inspect.getfile(LatencyModel)).parent / "*")
    own = tracemalloc.Filter(True, folder)
    traces = tracemalloc.take_snapshot().filter_traces([own]).statistics("filename")
    return sum(each.size for each in traces)


def learn_and_ask(model: LatencyModel, tool: str, calls: int) -> None:
    learn(model, history(tool, "c", calls, seed=len(tool)))
    model.remaining_s(tool, "c", 1.0)


def test_a_tool_takes_less_than_4_kb_whatever_its_history() -> None:
    """Memory is measured, with curves: many tools of few calls, one of 100,000."""
    for tools, calls_each in ((50, 30), (50, 300), (1, 100_000)):
        assert 1000 < bytes_each(tools, calls_each) < 4096


def test_a_tool_of_long_history_is_written_in_4_kb() -> None:
    """Encoded, a tool, its class and all tools take less than 4 KB each."""
    model = LatencyModel()
    learn_and_ask(model, "tool", 10_000)
    assert len(model.encode()) / 3 < 4096


def test_tools_without_number_take_no_more_room() -> None:
    """Beyond the bound the tool that was longest unseen goes; its class still knows."""
    model = LatencyModel(most_tools=10)
    learn(model, ((f"tool {n % 50}", "c", 30.0, "ok") for n in range(200)))
    known = [n for n in range(50) if model.counts(f"tool {n}").count]
    assert known == list(range(40, 50))
    assert model.quantile_s("tool 1", "c", 0.5) == pytest.approx(30.0, rel=0.2)


def test_classes_without_number_take_no_more_room() -> None:
    """Beyond 64 classes new ones count as "other", and people still stay apart."""
    model = LatencyModel()
    learn(model, ((f"t{n}", f"class {n}", 30.0, "ok") for n in range(200)))
    learn(model, [("user", "user", 0.001, "ok")] * 50)
    record = msgspec.msgpack.decode(model.encode())
    assert len(record["levels"]["classes"]) <= 66
    assert model.quantile_s("t199", "class 199", 0.5) > 10.0
    assert model.quantile_s("user", "user", 0.5) < 0.01


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_scaling_down_changes_nothing(seed: int) -> None:
    """Weights that were scaled down many times still tell the recent distribution."""
    chance = random.Random(seed)
    model = LatencyModel(half_life_calls=1.0)
    for _ in range(300):
        learn(model, [("t", "c", chance.uniform(0.1, 99.0), "ok")])
    learn(model, [("t", "c", 40.0, "timeout"), ("t", "c", 5.0, "cancelled")] * 3)
    assert model.survival("t", "c", 0.0, 1.0) > 0.2
    assert 0.0 < model.remaining_s("t", "c", 0.0) < math.inf
