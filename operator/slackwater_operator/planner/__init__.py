"""The planner: `plan(snapshot) -> Plan`, pure; it combines the policies."""
