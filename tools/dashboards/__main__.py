"""`python -m tools.dashboards`: writes the dashboards into the chart."""

from tools.dashboards import write

write()
