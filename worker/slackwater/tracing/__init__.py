"""Traces of a process, by OpenTelemetry. Worker and operator are handed a ``spans.Tracing``.

Importing this loads nothing of OpenTelemetry; :mod:`slackwater.tracing.sdk` does, where traces are on.
"""
