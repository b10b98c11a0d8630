import pytest

from evenstep.errors import ConfigError
from evenstep.pacing import PacerSettings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "maybe"),
        ("controller", "magic"),
        ("objective", "speed"),
        ("imbalance", -0.1),
        ("imbalance", float("nan")),
        ("imbalance", "3 %"),
        ("max_delay", 0.5),
        ("max_delay", True),
        ("max_delay_ns", 1.5),
        ("max_delay_ns", -1),
        ("stability_cost", 0.1),
        ("loss_share", 1),
        ("sharing", "yes"),
        ("guarded", 1),
        ("run_id", 7),
        ("attempt", -1),
        ("world", 0),
        ("rank", 1),  # of a world of 1
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^pace\.{field} must be .*, got "):
        PacerSettings(**{field: value})


def test_the_defaults_observe_and_share_nothing() -> None:
    settings = PacerSettings()
    assert (settings.mode, settings.controller, settings.sharing) == ("observe", "slack", False)
