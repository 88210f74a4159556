"""An archive of the classes that Spark loads at its start, so that Java does not read and check each again.

Java's application class-data sharing (JEP 310, JEP 350). Made once for an image, by the Java and with the
jars that are in it; a Java that finds an archive of another goes on without it. Measured with pyspark 4.2.0
on Java 17: a session and its first batch cost 10 s of CPU in place of 16.

    python -m slackwater.pipeline.engines.spark_archive FILE
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from slackwater.pipeline.engines.spark_session import ARCHIVE_VARIABLE, LOCAL, LocalBackend
from slackwater.runtime.errors import StartError


def make(target: Path) -> None:
    """Runs a batch as a worker does, and writes what was loaded for it to ``target``.

    Raises StartError where Spark does not start, or Java writes no archive.
    """
    import pyarrow as pa

    key = "spark.driver.extraJavaOptions"
    backend = LocalBackend(
        {key: f"{LOCAL[key]} -XX:ArchiveClassesAtExit={target} -Xlog:cds=off -Xlog:cds+dynamic=off"}
    )
    with tempfile.TemporaryDirectory(prefix="slackwater-archive-") as folder:
        spark = backend.open()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        java = gateway.proc
        rows = spark.createDataFrame(pa.table({"offset": range(100), "value": [b'{"n": 1}'] * 100}))
        parsed = rows.selectExpr("offset", "from_json(cast(value as string), 'n int').n as n")
        parsed.toArrow()
        parsed.write.parquet(f"{folder}/out")
        backend.close()
        # Java writes the archive when it ends, which it does when its standard input is closed.
        java.stdin.close()
        java.wait()
    if not target.is_file():
        raise StartError(f"Java has written no archive to {target}: is there room, and may it write there?")


def main(arguments: list[str] | None = None) -> int:
    """The command; exits with 2 where no archive can be made."""
    parser = argparse.ArgumentParser(prog="spark_archive", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help=f"where to write it; workers find it by {ARCHIVE_VARIABLE}")
    target: Path = parser.parse_args(arguments).file.absolute()
    os.environ.pop(ARCHIVE_VARIABLE, None)
    try:
        make(target)
    except StartError as exc:
        print(f"spark_archive: {exc}", file=sys.stderr)
        return 2
    print(f"{target}: {target.stat().st_size >> 20} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
