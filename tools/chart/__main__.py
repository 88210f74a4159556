"""`python -m tools.chart`: writes what of the chart is generated."""

from tools.chart import write

write()
