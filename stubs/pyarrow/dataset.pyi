from collections.abc import Iterator, Sequence
from pathlib import Path

from pyarrow import RecordBatch, Schema, Table
from pyarrow.compute import Expression

class Dataset:
    def count_rows(self, *, filter: Expression | None = ...) -> int: ...
    def to_table(self, columns: Sequence[str] | None = ..., filter: Expression | None = ...) -> Table: ...
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

def dataset(
    source: str | Path | Sequence[str],
    *,
    format: str = ...,
    schema: Schema | None = ...,
    partitioning: str | None = ...,
    partition_base_dir: str = ...,
    exclude_invalid_files: bool = ...,
) -> Dataset: ...
