"""DuckDB at the edge: a connection for one file whose errors are sentences, and the file's path."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from evenstep.errors import TraceError
from evenstep.trace.store.database import connect

if TYPE_CHECKING:
    import duckdb


class Connection:
    """A DuckDB of its own for one file, which loads no extension; its errors are sentences."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> duckdb.DuckDBPyConnection:
        self._connection = connect(2)
        self._connection.execute("set memory_limit = '2GB'")
        return self._connection

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._connection.close()
        import duckdb

        if isinstance(error, duckdb.Error):
            reason = str(error).splitlines()[0]
            raise TraceError(f"{self._path} cannot be read: {reason}; export it again") from error


class PlainPath:
    """The path of a file as DuckDB takes it: characters of a pattern are linked away."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    def __enter__(self) -> str:
        self._folder = TemporaryDirectory() if set("*?[") & set(str(self._path)) else None
        if self._folder is None:
            return str(self._path)
        link = Path(self._folder.name) / "table"
        link.symlink_to(self._path)
        return str(link)

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()
