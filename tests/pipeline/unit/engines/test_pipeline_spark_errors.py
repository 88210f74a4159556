import pytest

from slackwater.pipeline.engines.spark_session import summary

UDF = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times
Traceback (most recent call last):
  File "/x/site-packages/pyspark/worker.py", line 9, in main
    process()
  File "/home/u/flights.py", line 12, in parse
    return int(value)
  File "/x/site-packages/pyspark/util.py", line 3, in wrap
    return f()
ValueError: invalid literal for int()

\tat org.apache.spark.api.python.BasePythonRunner
Caused by: org.apache.spark.api.python.PythonException: Traceback"""

JAVA = """Job aborted due to stage failure: Task 0 failed
\tat org.apache.spark.X
Caused by: org.apache.spark.SparkException: wrapped
\tat y
Caused by: java.lang.IllegalStateException: the root of it
\tat z"""


def test_an_error_in_a_udf_is_shown_with_the_users_line() -> None:
    assert summary(Exception(UDF)) == "ValueError: invalid literal for int() (/home/u/flights.py line 12)"


def test_a_java_error_is_shown_by_its_root_cause() -> None:
    assert summary(Exception(JAVA)) == "IllegalStateException: the root of it"


def test_any_other_error_is_shown_by_its_first_line() -> None:
    text = "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== DataFrame ==\nmore"
    assert summary(Exception(text)) == "[DIVIDE_BY_ZERO] Division by zero."
    assert summary(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize(
    "text",
    ["x" * 10_000, "x" + " " * 2_000_000 + "x", "Traceback (most recent call last):\n " * 200_000],
    ids=["long", "blanks", "tracebacks"],
)
def test_long_texts_are_cut_in_linear_time(text: str) -> None:
    """They may hold a record's bytes. What is quadratic takes more than the time limit of a test."""
    assert len(summary(Exception(text))) < 600
