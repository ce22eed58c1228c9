"""One lifecycle a kind, each a table of every legal transition; the docs' diagrams are made from them."""
