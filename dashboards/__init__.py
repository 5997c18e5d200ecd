"""Grafana dashboards, recording and alerting rules, and the program that writes their files.

What is shown and when somebody is called is data (`model`), which knows neither Grafana nor a
cluster; the metrics are those of `sluice_contract.cluster.metrics`.
"""
