"""``spark.read.format("slackwater")`` and ``spark.readStream.format("slackwater")``.

Spark's processes import :mod:`source`; users register it by :mod:`slackwater.spark`.
"""
