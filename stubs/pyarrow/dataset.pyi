from collections.abc import Iterator, Sequence
from pathlib import Path

from pyarrow import PythonFile, RecordBatch, Schema
from pyarrow.compute import Expression

class Dataset:
    def count_rows(self) -> int: ...
    @property
    def schema(self) -> Schema: ...
    def to_batches(
        self,
        columns: Sequence[str] | None = ...,
        filter: Expression | None = ...,
        batch_size: int = ...,
        *,
        batch_readahead: int = ...,
        fragment_readahead: int = ...,
        use_threads: bool = ...,
    ) -> Iterator[RecordBatch]: ...

class Fragment:
    def to_batches(
        self,
        schema: Schema | None = ...,
        columns: Sequence[str] | None = ...,
        filter: Expression | None = ...,
        batch_size: int = ...,
        *,
        batch_readahead: int = ...,
        use_threads: bool = ...,
    ) -> Iterator[RecordBatch]: ...

class ParquetFileFormat:
    def __init__(self, *, dictionary_columns: Sequence[str] = ...) -> None: ...
    def make_fragment(self, file: PythonFile) -> Fragment: ...

def dataset(
    source: str | Path,
    *,
    format: str | ParquetFileFormat = ...,
    schema: Schema | None = ...,
    partitioning: str | None = ...,
    exclude_invalid_files: bool = ...,
) -> Dataset: ...
