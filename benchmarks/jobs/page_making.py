"""Diagnose a run and write its page; print how long the page took and how large it is."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from evenstep.diagnose.engine import diagnose
from evenstep.report.page import html, sheet
from evenstep.trace.loading import load


def main() -> None:
    """The page of one folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("page", type=Path)
    args = parser.parse_args()
    trace = load(args.folder)
    diagnosis = diagnose(trace)
    begun = time.perf_counter()
    sheet.write(args.page, html.render(diagnosis, trace))
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "bytes": args.page.stat().st_size}))


if __name__ == "__main__":
    main()
