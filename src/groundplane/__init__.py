"""Groundplane: design an AI cluster, rehearse it in simulation, run it.

Importing the package stays light: no torch, no Ray, no web framework.
"""

__version__ = "0.1.0"
