"""Models of any kind: calling them, looking inside, building, reading and writing them."""
