"""The names of the baselines, as users write them."""

import pytest

from kvalet.scheduler import InvalidSetting, parse_policy


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("infercept", "infercept"),
        ("oracle", "oracle"),
        ("unlimited", "unlimited"),
        ("thunder", "thunder"),
        ("thunder:tier", "thunder:tier"),
        ("progress-ttl", "progress-ttl"),
        ("progress-ttl:tier", "progress-ttl:tier"),
        ("continuum", "continuum"),
        ("continuum:released", "continuum:released"),
        ("continuum:tier:released", "continuum:released:tier"),
    ],
)
def test_names_are_normalised(text: str, name: str) -> None:
    """A policy says its name as it may be written, in one order."""
    assert parse_policy(text).name == name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("thunder:fast", "policy 'thunder' takes tier, got 'fast'"),
        ("thunder:", "policy 'thunder' takes tier, got ''"),
        ("progress-ttl:released", "policy 'progress-ttl' takes tier, got 'released'"),
        ("continuum:2", "policy 'continuum' takes released and tier, got '2'"),
        ("continuum:tier:", "policy 'continuum' takes released and tier, got ''"),
        ("oracle:tier", "policy 'oracle' takes no parameter, got 'tier'"),
    ],
)
def test_wrong_parameters_get_a_sentence(text: str, sentence: str) -> None:
    """The sentence names the policy, what it takes and what was written."""
    with pytest.raises(InvalidSetting) as raised:
        parse_policy(text)
    assert str(raised.value) == sentence
