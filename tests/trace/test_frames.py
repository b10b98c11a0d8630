"""Which frame of a stack is told."""

import pytest

from evenstep.trace.frames import called_there, own_place

TYPED = "<ipython-input-2-abc>:2 augment"
RESIZE, OPEN = "site-packages/PIL/Image.py:9 resize", "dist-packages/PIL/Image.py:1 open"


@pytest.mark.parametrize(
    ("frames", "own", "called"),
    [
        (["<nn/linear.py>:9 forward", TYPED, "launch.py:7 main"], TYPED, ""),
        (["<string>:1 __init__", "train.py:3 f"], "train.py:3 f", ""),
        (["<string>:1 __init__", "<lib/site.py>:3 f"], "<string>:1 __init__", ""),
        (["<lib/a.py>:1 f", RESIZE, OPEN, "train.py:3 f", "run.py:1 g"], "train.py:3 f", RESIZE),
        (["train.py:3 on_step_end", RESIZE, "train.py:9 <module>"], "train.py:3 on_step_end", ""),
        (["<lib/a.py>:1 f", RESIZE, OPEN], RESIZE, ""),
        (["<lib/a.py>:1 f"], "<lib/a.py>:1 f", ""),
        ([], "", ""),
    ],
)
def test_the_scripts_innermost_frame_is_told_and_the_package_it_had_called(frames, own, called):
    assert (own_place(frames), called_there(frames)) == (own, called)
