"""The tour: the whole story on this machine, on real parts, in minutes. Stands above all floors."""
