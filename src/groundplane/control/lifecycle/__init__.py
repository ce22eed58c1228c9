"""One lifecycle a kind, each a table of every legal transition; the diagrams in the docs are made from them."""
