"""Data of any form: samples, images, splits, named data sets and the files they come from."""
