"""The innermost frame of a thread, whatever the version of Python."""

import gc
import sys

import pytest

from evenstep.agent.pulse.frames import frame_of_thread


@pytest.mark.parametrize("version", [(3, 11, 8), (3, 11, 9), (3, 12, 0)])
@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_under_the_lock_of_the_list_of_threads(
    monkeypatch, version, collects
):
    """Where Python would collect there; whether the job lets it collect does not change."""
    seen = []
    frames = {7: sys._getframe()}
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setattr(sys, "_current_frames", lambda: seen.append(gc.isenabled()) or frames)
    (gc.enable if collects else gc.disable)()
    try:
        assert frame_of_thread(7) is frames[7]
        assert gc.isenabled() == collects
    finally:
        gc.enable()
    assert seen == [collects and version >= (3, 11, 9)]


def test_a_list_of_threads_that_cannot_be_had_leaves_the_collector_on(monkeypatch):
    def fails():
        raise MemoryError

    monkeypatch.setattr(sys, "version_info", (3, 11, 8))
    monkeypatch.setattr(sys, "_current_frames", fails)
    with pytest.raises(MemoryError):
        frame_of_thread(7)
    assert gc.isenabled()
