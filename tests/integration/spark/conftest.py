"""The one Spark of these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.spark import JAVA_OPTIONS, WITHOUT_CODE_GENERATION, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Configured = Callable[[Mapping[str, str]], AbstractContextManager["SparkSession"]]


@pytest.fixture(scope="package")
def one_spark() -> Iterator[SparkSession]:
    """A Spark of this process."""
    require_spark()
    from sbus_archive.pipeline.session import spark_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SBUS_PIPELINE_JAVA_OPTIONS", JAVA_OPTIONS)
        with spark_session("local[2]") as session:
            yield session


@pytest.fixture(scope="package")
def configured(one_spark: SparkSession) -> Configured:
    """Return the Spark with more settings until the context ends; it interprets queries of some hundred rows instead of compiling them."""

    @contextmanager
    def configured(settings: Mapping[str, str]) -> Iterator[SparkSession]:
        before = one_spark.conf.getAll
        for name, value in {**WITHOUT_CODE_GENERATION, **settings}.items():
            one_spark.conf.set(name, value)
        try:
            yield one_spark
        finally:
            for name in one_spark.conf.getAll.keys() - before.keys():
                one_spark.conf.unset(name)
            for name, value in before.items():
                if one_spark.conf.get(name) != value:
                    one_spark.conf.set(name, value)

    return configured


@pytest.fixture
def small_spark(configured: Configured) -> Iterator[SparkSession]:
    """The Spark as a program starts it for a small run."""
    from sbus_archive.pipeline.session import _SMALL

    with configured(_SMALL) as session:
        yield session
