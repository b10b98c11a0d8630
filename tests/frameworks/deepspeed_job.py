"""The DeepSpeed example without the operations that DeepSpeed would first have to compile."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import deepspeed

for name in deepspeed.ops.__compatible_ops__:
    deepspeed.ops.__compatible_ops__[name] = False
example = Path(__file__).parents[2] / "examples" / "frameworks" / "deepspeed_engine.py"
sys.path.insert(0, str(example.parent))
runpy.run_path(str(example), run_name="__main__")
