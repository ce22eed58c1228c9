"""Measuring the machine at hand, and describing it as a cluster file that the planner reads.

Knows spec and catalog; reads clocks, devices and disks. Nothing below imports it.
"""
