"""Build and find the compiled recorder of a torch.

A launcher builds it (`build_recorder`), a rank only finds it (`find_recorder`). Both identify torch
by its folder, without importing it: by its version file, which has the commit, and the ABI of its
strings, which is in the names that its library exports.
"""

from __future__ import annotations

import importlib.util
import mmap
from collections.abc import Callable
from pathlib import Path

from evenstep.compiled import Library, LibrarySource, build, find

SOURCE = Path(__file__).with_name("recorder.cpp")
#: The name of `c10::Error`'s constructor with strings of the new ABI.
_NEW_STRINGS = b"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_string"


def installed_folder() -> Path | None:
    """The folder of the torch that this interpreter would import."""
    spec = importlib.util.find_spec("torch")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def build_recorder(torch_folder: Path) -> Library:
    """The recorder for a torch, compiled if necessary: about half a minute of processor time."""
    return _with(torch_folder, build)


def find_recorder(torch_folder: Path) -> Library:
    """The recorder for an imported torch, if it was built."""
    return _with(torch_folder, find)


def _with(torch_folder: Path, look: Callable[[LibrarySource], Library]) -> Library:
    try:
        return look(source_for(torch_folder))
    except OSError as error:
        return Library(None, f"{torch_folder} is not a torch to compile against: {error}")


def source_for(torch_folder: Path) -> LibrarySource:
    """The recorder as it is compiled for a torch. Raises OSError where that is none."""
    version = (torch_folder / "version.py").read_text(encoding="utf-8")
    libraries = torch_folder / "lib"
    with (
        (libraries / "libc10.so").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        new_strings = content.find(_NEW_STRINGS) >= 0
    return LibrarySource(
        SOURCE,
        flags=(
            "-std=c++20",  # as torch asks from 2.15 on; older ones take it too
            f"-D_GLIBCXX_USE_CXX11_ABI={int(new_strings)}",
            f"-I{torch_folder / 'include'}",
            f"-L{libraries}",
            "-ltorch_cpu",
            "-lc10",
            "-fno-plt",  # fewer lines of code to fetch into cold caches, by these two
            "-Wl,-Bsymbolic-functions",
        ),
        against=(version,),
    )
