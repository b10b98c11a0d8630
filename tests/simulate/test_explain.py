import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cli import explain
from evenstep.cli.explain import BY_NAME, TOPICS
from evenstep.errors import EvenstepError, UsageError
from evenstep.explain import topic


def ask(topic, **given):
    named = {name.replace("_", "-"): text for name, text in given.items()}
    return BY_NAME[topic].answer(named)["results"]


@pytest.mark.parametrize(
    ("typed", "size"),
    [
        ("20GB", 20e9), ("20 GB", 20e9), ("1.5GiB", 1.5 * 2**30), ("100kB", 1e5), ("8KiB", 8192),
        ("1e9B", 1e9), ("512", 512),
    ],
)  # fmt: skip
def test_sizes_are_decimal_unless_they_say_otherwise(typed, size):
    assert topic.SIZE.parse(typed) == size


@pytest.mark.parametrize(
    "typed", ["20gb", "20Gb", "20KB", "20 G", "GB", "", "-1GB", "0", "1e999GB", "nan"]
)
def test_sizes_nobody_could_be_sure_about_are_refused(typed):
    with pytest.raises(ValueError, match=r"write it like|must be|beyond what"):
        topic.SIZE.parse(typed)


@pytest.mark.parametrize(
    ("typed", "time_ns"),
    [("2us", 2e3), ("2µs", 2e3), ("1.5ms", 1.5e6), ("60s", 6e10), ("3h", 10.8e12), ("0", 0)],
)
def test_times_are_nanoseconds_inside(typed, time_ns):
    assert topic.TIME.parse(typed) == time_ns


@pytest.mark.parametrize("typed", ["2", "2Ms", "2 sec", "-1ms", "two"])
def test_times_without_a_known_unit_are_refused(typed):
    with pytest.raises(ValueError, match=r"write it like|must be"):
        topic.TIME.parse(typed)


def test_a_share_may_be_percent_but_not_more_than_all():
    assert topic.SHARE.parse("12%") == topic.SHARE.parse("0.12")
    with pytest.raises(ValueError, match="at most 1"):
        topic.SHARE.parse("120%")


@pytest.mark.parametrize("typed", ["1.5", "0", "-3", "5e9", "many"])
def test_ranks_are_whole_and_few_enough(typed):
    with pytest.raises(ValueError, match=r"must be|write it like"):
        topic.RANKS.parse(typed)


@given(st.text(max_size=20))
def test_any_text_is_either_a_finite_measure_or_refused(typed):
    for kind in (topic.SIZE, topic.TIME, topic.SHARE, topic.RANKS):
        with contextlib.suppress(ValueError):
            assert math.isfinite(kind.parse(typed))


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_the_example_of_a_topic_is_answered_with_a_source(topic):
    words = topic.example.replace("--", "").split()
    answer = topic.answer(dict(zip(words[::2], words[1::2], strict=True)))
    assert answer["rows"]
    assert all(formula["source"] for formula in answer["formulas"])


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_every_unit_of_time_and_bytes_is_in_the_name(topic):
    words = topic.example.replace("--", "").split()
    answer = topic.answer(dict(zip(words[::2], words[1::2], strict=True)))
    for row in answer["rows"]:
        assert (row["unit"] == "ns") == row["name"].endswith("_ns"), row
        assert row["unit"] != "bytes" or row["name"].endswith("_bytes")


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_what_a_topic_needs_is_asked_for_with_an_example(topic):
    with pytest.raises(UsageError, match=rf"explain {topic.name} needs --.*evenstep explain"):
        topic.answer({})


EXTREMES = {
    "_bytes": ["1B", "1e23B"], "_ns": ["0", "1ns", "1e9d"],
    "": ["0", "1", "2", "8", "0.5", "1e-12", "1e9", "1e24", "2x2", "torus"],
}  # fmt: skip


@given(st.sampled_from(TOPICS), st.data())
def test_extreme_inputs_are_answered_in_finite_numbers_or_refused_in_words(topic, data):
    words = topic.example.replace("--", "").split()
    given_ = dict(zip(words[::2], words[1::2], strict=True))
    for row in data.draw(st.lists(st.sampled_from(topic.parameters), max_size=4)):
        given_[row.name] = data.draw(st.sampled_from(EXTREMES[row.kind.unit]))
    with contextlib.suppress(EvenstepError):
        results = topic.answer(given_)["results"].values()
        assert all(value is None or math.isfinite(value) for value in results)


def test_gigabits_are_an_eighth_of_gigabytes():
    options = {"bytes": "20GB", "ranks": "512"}
    bits, bytes_ = ask("allreduce", **options, gbps="400"), ask("allreduce", **options, gBps="50")
    assert bits == bytes_


@pytest.mark.parametrize("speed", [{}, {"gBps": "50", "gbps": "400"}])
def test_a_speed_is_given_exactly_once(speed):
    with pytest.raises(UsageError, match="speed once"):
        ask("allreduce", bytes="1GB", ranks="8", **speed)


def test_the_same_by_other_algorithms_stands_beside():
    answer = ask(
        "allreduce", bytes="1GB", ranks="64", gBps="25", ranks_per_node="8", node_gBps="240",
        algorithm="hierarchical",
    )  # fmt: skip
    by_hand = 2 * 1e9 * 7 / 8 / 240 + 2 * 1e9 / 8 * 7 / 8 / 25
    assert answer["time_ns"] == pytest.approx(by_hand)
    assert answer["ring_ns"] == pytest.approx(2 * 1e9 * 63 / 64 / 25)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "hierarchical"}, "--ranks-per-node"),
        ({"algorithm": "hierarchical", "ranks_per_node": "5", "node_gBps": "1"}, "no multiple"),
        ({"algorithm": "torus"}, "--shape"),
        ({"algorithm": "torus", "shape": "2x2"}, "has 4 places"),
        ({"algorithm": "rng"}, "choose from ring, tree"),
        ({"latency": "-1us"}, "at least 0"),
    ],
)
def test_a_contradiction_is_named(options, message):
    with pytest.raises(UsageError, match=message):
        ask("allreduce", bytes="1GB", ranks="8", gBps="25", **options)


def test_efficiency_is_compute_over_compute_and_exposed_communication():
    answer = ask("efficiency", ranks="2", compute="1s", bytes="10GB", gBps="20", hidden="50%")
    assert answer["efficiency"] == pytest.approx(1 / 1.25)  # 10 GB once over 20 GB/s, half


def test_efficiency_from_a_model_counts_its_arithmetic():
    # 6 × 10^10 × 4,096 FLOP at half of 312 TFLOP/s
    answer = ask("efficiency", ranks="8", parameters="10B", tokens="4096", tflops="312", gBps="50")
    assert answer["compute_ns"] == pytest.approx(6e10 * 4096 / 156e12 * 1e9)
    assert answer["gradient_bytes"] == 20e9


def test_efficiency_says_what_is_missing():
    with pytest.raises(UsageError, match="--tflops is missing"):
        ask("efficiency", ranks="8", parameters="1B", tokens="1k", gBps="50")
    with pytest.raises(UsageError, match="--model-ranks 3"):
        ask("efficiency", ranks="8", compute="1s", bytes="1GB", gBps="5", model_ranks="3")


def test_the_slowest_of_rare_hits_and_of_normal_ranks_are_told_apart():
    rare = ask("slowest", ranks="100", probability="1%", delay="50ms")
    assert rare["chance"] == pytest.approx(1 - 0.99**100)
    assert ask("slowest", ranks="2", cv="10%")["amplification"] == pytest.approx(
        1 + 0.1 / math.sqrt(math.pi)
    )


@pytest.mark.parametrize(
    ("topic", "options"),
    [
        ("slowest", {"ranks": "8"}),
        ("slowest", {"ranks": "8", "probability": "1%"}),
        ("failures", {"gpus": "8"}),
    ],
)
def test_half_a_question_is_refused(topic, options):
    with pytest.raises(UsageError):
        ask(topic, **options)


def test_failures_scale_from_what_was_seen():
    answer = ask("failures", gpus="16384", interruptions="419", days="54", observed_gpus="16384")
    assert answer["mttf_hours"] == pytest.approx(54 * 24 / 419)


def test_nothing_to_exchange_has_no_bus_bandwidth():
    answer = ask("allreduce", bytes="1GB", ranks="1", gBps="50")
    assert answer["bus_gBps"] is None


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (798_437_500.0, "ns", "798.4 ms"), (0.49656, "share", "49.66 %"), (20e9, "bytes", "20 GB"),
        (None, "GB/s", "unknown"), (0, "ns", "0"), (1.0, "", "1"), (12345.6, "W", "12,350 W"),
        (0.00002, "", "0.00002"),
    ],
)  # fmt: skip
def test_numbers_read_with_four_digits(value, unit, expected):
    assert explain.format_quantity(value, unit) == expected
