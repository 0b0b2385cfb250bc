"""A standalone Spark cluster of this machine's own processes."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.support.spark import JAVA_OPTIONS

_SECONDS = 300
"""When a master or a worker that has not started is a failure; it takes three seconds, and two minutes at a load of 28."""


@dataclass(slots=True)
class Cluster:
    """A master and two workers of one core each, which end with the context."""

    folder: Path
    url: str = ""
    """What ``--master`` takes; the master chooses the port."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path) -> Iterator[Cluster]:
        """Start one in *folder*; it is ready when the master knows both workers."""
        cluster = cls(folder)
        try:
            master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            cluster._start("master", *master)
            (cluster.url,) = cluster._wait_for(r"Starting Spark master at (spark://\S+)\n")
            for number in (1, 2):
                worker = (
                    "org.apache.spark.deploy.worker.Worker",
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--host",
                    "127.0.0.1",
                    "--webui-port",
                    "0",
                )
                cluster._start(f"worker{number}", *worker, "--work-dir", str(folder / f"work{number}"), cluster.url)
            cluster._wait_for("Registering worker", 2)
            yield cluster
        finally:
            for process in reversed(cluster.processes):
                process.kill()
                process.wait(60)

    def applications(self) -> list[str]:
        """Return the names of all programs that have run on it."""
        return [line.rsplit("Registering app ", 1)[1] for line in self._log().splitlines() if "Registering app " in line]

    def _start(self, name: str, *arguments: str) -> None:
        """Start one of its processes."""
        home = Path(pyspark.__file__).parent
        env = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            spark_class = str(home / "bin" / "spark-class")
            self.processes.append(subprocess.Popen([spark_class, *arguments], env=env, stdout=log, stderr=log, cwd=self.folder))

    def _log(self) -> str:
        """Return what the master has said."""
        return (self.folder / "master.log").read_text(errors="replace")

    def _wait_for(self, pattern: str, times: int = 1) -> list[str]:
        """Wait until the master has logged *times* matches of *pattern*, and return them."""
        deadline = time.monotonic() + _SECONDS
        while len(found := re.findall(pattern, self._log())) < times:
            assert time.monotonic() < deadline, self._log()
            time.sleep(0.1)
        return found
