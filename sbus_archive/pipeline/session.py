"""Starts Spark quietly: on this machine, on the cluster of ``--master``, or in the process of spark-submit(1)."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sbus_archive.optional_packages import how_to_install, pass_local_packages, use_local_packages
from sbus_archive.pipeline.errors import PermanentError, PipelineError, root_cause
from sbus_archive.storage.files import UMASK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"

_INCUBATOR = b"WARNING: Using incubator modules: jdk.incubator.vector"
"""The one line of Java that no setting silences: Spark's launcher requests that module."""

DRIVER_MEMORY = "2g"
"""Heap of the driver, which is all of Spark without a cluster. 512m is enough for hours of three million rows."""

DIRECT_MEMORY = "512m"
"""Direct memory of the driver: buffers of files, and of rows sent to Python. The default is as much as the heap."""

_MALLOC = "MALLOC_ARENA_MAX"
_ARENAS = "2"
"""Arenas of the C library in each process. The default is eight per processor, which wastes memory."""

PACKAGES = ("sbus", "sbus_archive", "sbus_programs")
"""The packages that the pipeline imports, and that executors are sent."""

_STATIC = {
    "spark.app.name": "sbus-pipeline",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": DRIVER_MEMORY,
    # Nothing is fetched, but the path must be absolute; that of a user without a home directory is not.
    "spark.jars.ivy": "/nonexistent",
    "spark.driver.bindAddress": "127.0.0.1",
    # Hadoop uses this setting for modes, not the umask.
    "spark.hadoop.fs.permissions.umask-mode": f"{UMASK:03o}",
    # Other users of this machine can connect to the ports of Spark. Authentication prevents them from running code in it.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
}
"""Settings that take effect only before Spark starts; the user can override them."""

_AUTHENTICATION = ("spark.authenticate", "spark.network.crypto.enabled")
_IN_THE_DRIVER = re.compile(r"local(\[[^\[\]]+\])?")
"""Masters for which Spark generates the secret itself, because there are no executors to send it to."""

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    # The type that write_empty() uses, so that a column has one type for every reader.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Each task finds the first 1000 values of each column before rows are exchanged.
    "spark.sql.optimizer.windowGroupLimitThreshold": "10000",
    # Adaptive execution divides larger partitions of a join. With the default of 256m one task could have half of the messages.
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "32m",
    # Streams of the pipeline keep no state, so few batches need to be retained.
    "spark.sql.streaming.minBatchesToRetain": "10",
}
"""Settings used where neither spark-defaults.conf nor the command line has a value."""

PARTITIONS_PER_CORE = 4
"""Initial number of shuffle partitions per processor of Spark, at least :data:`FEWEST_PARTITIONS`. Adaptive execution merges small ones."""

FEWEST_PARTITIONS = 8
"""Initial number of shuffle partitions on a small machine. Spark's default of 200 is a tenth slower."""

_SMALL = {
    # One partition, so one task: no exchanges, and no statistics to wait for.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    # A broadcast is a job of its own.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # Listing more files than this would be a job too.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}
"""Settings of a small run, used in the same way."""

_LARGE_COLLECTOR = "-XX:+UseParallelGC"
"""Java's throughput collector: a tenth less processor time than with the default, whose short pauses are of no use here."""

_SMALL_JAVA = "-XX:TieredStopAtLevel=1"
_SMALL_COLLECTOR = "-XX:+UseSerialGC"
"""Java's second compiler, and collectors with threads of their own, would not pay within the seconds of a small run."""

_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
"""An option that chooses a collector. Java refuses to start with two."""

_LAUNCHER = "SPARK_LAUNCHER_OPTS"
_LAUNCHER_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of the Java process that only prints the command line of Spark."""

OLDEST_JAVA = 17
"""The oldest Java that Spark 4 runs on."""

_JAVA_ADVICE = f"Install Java {OLDEST_JAVA} or later (Debian: apt-get install default-jre-headless), or set JAVA_HOME"
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_JAVA_SECONDS = 60
"""Time limit for printing the version; a cold start from a slow disk takes some seconds."""


@contextlib.contextmanager
def spark_session(master: str | None, *, is_small: bool = False) -> Iterator[SparkSession]:
    """Start Spark, on *master* if given, and stop it at the end. *is_small*: for a small run, unless the master is a cluster.

    Raises:
        PermanentError: PySpark or Java is missing.
        PipelineError: Spark does not start.
    """
    if _SUBMITTED in os.environ:
        if master is not None:
            raise PipelineError("--master is not allowed under spark-submit: use the option --master of spark-submit")
    else:
        check_java(os.environ)
        prepare_environment(os.environ, master, is_small=is_small and is_local(master))
    with quiet_engine():
        session = _start()
    is_small = is_small and is_local(session.sparkContext.master)
    configured = {name for name, _ in session.sparkContext.getConf().getAll()}
    partitions = {"spark.sql.shuffle.partitions": str(initial_partitions(session.sparkContext.defaultParallelism))}
    for name, value in {**_SETTINGS, **partitions, **(_SMALL if is_small else {})}.items():
        if name not in configured:
            session.conf.set(name, value)
    with contextlib.ExitStack() as stack:
        stack.callback(_stop, session)
        if not is_local(session.sparkContext.master):
            try:
                _send_package(session, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sbus-pipeline-"))))
            except OSError as error:
                raise PipelineError(f"cannot send the packages to the executors: {error}") from None
        yield session


def _stop(session: SparkSession) -> None:
    """Stop *session*."""
    with contextlib.suppress(Exception):  # a Java process that has gone cannot be stopped
        session.stop()


def _send_package(session: SparkSession, folder: Path) -> None:
    """Send the packages that the pipeline needs to the executors, which need not have them.

    Spark reads the file in *folder* until it stops.
    """
    place = Path(__file__).parents[2]
    if not place.is_dir():
        return  # they were themselves sent by --py-files
    target = folder / "sbus-modules.zip"
    with zipfile.ZipFile(target, "w", strict_timestamps=False) as archive:
        for module in sorted(module for package in PACKAGES for module in (place / package).rglob("*.py")):
            archive.write(module, module.relative_to(place))
    session.sparkContext.addPyFile(str(target))


def _start() -> SparkSession:
    """Return a new session."""
    use_local_packages()
    try:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - an optional package
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError:
        raise PermanentError(f"PySpark is not installed. Install it with: {how_to_install('pipeline')}") from None
    silence_tracebacks()
    try:
        return SparkSession.builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        raise PipelineError(f"cannot start Spark: {root_cause(error)}") from None


def silence_tracebacks() -> None:
    """Keep PySpark and Py4J from printing tracebacks when Java ends: the query that fails then says so in one line.

    With ``python3 -X dev`` they are printed.
    """
    if sys.flags.dev_mode:
        return
    from pyspark import accumulators  # noqa: PLC0415 - an optional package

    # Without any handler the functions of logging that Py4J calls would add one for standard error.
    logging.getLogger().addHandler(logging.NullHandler())
    for name in ("AccumulatorTCPServer", "AccumulatorUnixServer"):
        if (server := getattr(accumulators, name, None)) is not None:
            server.handle_error = lambda *_: None


def initial_partitions(cores: int) -> int:
    """Return the initial number of shuffle partitions for *cores*, the processors of Spark when it starts."""
    return max(FEWEST_PARTITIONS, PARTITIONS_PER_CORE * cores)


def is_on_cluster(master: str | None) -> bool:
    """Return whether other processes than the driver can compute; under spark-submit its options decide, so they may."""
    return _SUBMITTED in os.environ or not is_local(master)


def is_local(master: str | None) -> bool:
    """Return whether *master* runs everything in the driver's process."""
    return master is None or _IN_THE_DRIVER.fullmatch(master) is not None


def prepare_environment(environ: os._Environ[str] | dict[str, str], master: str | None, *, is_small: bool = False) -> None:
    """Set the variables of Spark's launcher in *environ*. Values of the user come last, so they win."""
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    pass_local_packages(environ)
    environ.setdefault(_MALLOC, _ARENAS)
    environ.setdefault(_LAUNCHER, _LAUNCHER_JAVA)
    # Otherwise Spark resolves the name of this machine, and warns if that fails.
    if master is None:
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    environ[_ARGUMENTS] = " ".join([*_arguments(environ, master, is_small=is_small), environ.get(_ARGUMENTS, "pyspark-shell")])


def _arguments(environ: Mapping[str, str], master: str | None, *, is_small: bool) -> list[str]:
    """Return options for spark-submit, quoted for the shell."""
    log = Path(__file__).with_name("log4j2.properties").as_uri()
    java = f"-Dlog4j2.configurationFile={log} -XX:MaxDirectMemorySize={DIRECT_MEMORY}"
    own_java = environ.get("SBUS_PIPELINE_JAVA_OPTIONS", "")
    if is_small:
        java += f" {_SMALL_JAVA}"
    if not _COLLECTOR.search(own_java):
        java += f" {_SMALL_COLLECTOR if is_small else _LARGE_COLLECTOR}"
    settings = {**_STATIC, "spark.driver.extraJavaOptions": f"{java} {own_java}".rstrip()}
    if master is not None and not master.startswith("local"):
        del settings["spark.driver.bindAddress"]  # executors on other hosts must reach the driver
    if not is_local(master):
        # A cluster has its own secret, or none.
        for name in _AUTHENTICATION:
            del settings[name]
        # The tables of an hour are computed at the same time, each in its pool.
        settings["spark.scheduler.mode"] = "FAIR"
    words = [] if master is None else ["--master", master]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    return [shlex.quote(word) for word in words]


@contextlib.contextmanager
def quiet_engine() -> Iterator[None]:
    """Forward standard error of a Java process started in this context, until it exits, without the line that it always prints."""
    saved = os.dup(2)
    reading, writing = os.pipe()
    threading.Thread(target=_relay, args=(reading, saved), name="spark-stderr", daemon=True).start()
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(saved, 2)


def _relay(reading: int, writing: int) -> None:
    """Copy lines from one descriptor to the other until the first is closed."""
    with os.fdopen(reading, "rb") as lines, os.fdopen(writing, "wb", buffering=0) as out, contextlib.suppress(OSError):
        for line in lines:
            if line.strip() and not line.startswith(_INCUBATOR):
                out.write(line)


def check_java(environ: Mapping[str, str]) -> Path:
    """Return the ``java`` that Spark would start with *environ*.

    Raises:
        PermanentError: it does not exist, does not run, or is older than :data:`OLDEST_JAVA`.
        PipelineError: it does not respond, or does not print its version.
    """
    java = _find_java(environ)
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", timeout=_JAVA_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        # A busy machine may be the reason that there is no response.
        kind, reason = (PermanentError, error.strerror) if isinstance(error, OSError) else (PipelineError, "no response")
        raise kind(f"Spark needs Java, but {java} does not run: {reason}. {_JAVA_ADVICE}") from None
    match = _JAVA_VERSION.search(asked.stderr + asked.stdout)
    if asked.returncode or match is None:
        raise PipelineError(f"Spark needs Java, but {java} does not print its version. {_JAVA_ADVICE}")
    if int(match[1]) < OLDEST_JAVA:
        raise PermanentError(f"Spark needs Java {OLDEST_JAVA} or later, but {java} is Java {match[1]}. {_JAVA_ADVICE}")
    return java


def _find_java(environ: Mapping[str, str]) -> Path:
    """Return the path of java, found in the same way as by Spark's launcher."""
    if home := environ.get("JAVA_HOME"):
        java = Path(home, "bin", "java")
        if not os.access(java, os.X_OK):
            raise PermanentError(f"Spark needs Java, but JAVA_HOME is {home}, which has no bin/java. {_JAVA_ADVICE}")
        return java
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        return Path(found)
    raise PermanentError(f"Spark needs Java, but it is not installed. {_JAVA_ADVICE}")
