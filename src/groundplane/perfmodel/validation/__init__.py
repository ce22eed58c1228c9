"""The model against measurements that others published: one module a kind of data."""
