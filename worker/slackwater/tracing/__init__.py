"""Traces of a process (OpenTelemetry). Worker and operator are handed a :class:`~slackwater.tracing.spans.Tracing`.

Importing it loads nothing of OpenTelemetry; :mod:`slackwater.tracing.sdk` does, where traces are on.
"""
